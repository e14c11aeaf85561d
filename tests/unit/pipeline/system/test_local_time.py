"""Times as tables show them, also those that are none."""

import math

import pytest

from hotdraft.pipeline.system.local_time import local_time


@pytest.mark.parametrize("seconds", [math.inf, math.nan, 1.7e12, -1e300])
def test_a_time_that_is_none_is_shown_as_the_number_that_it_is(seconds: float) -> None:
    assert float(local_time(seconds)) == pytest.approx(seconds, nan_ok=True)
