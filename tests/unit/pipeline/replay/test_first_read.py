import numpy as np
import pytest

from hotdraft.pipeline.replay.draft_window import first_read, lengths_read


@pytest.mark.parametrize(("length", "first"), [(0, 0), (64, 0), (128, 0), (129, 65), (1000, 936)])
def test_the_end_is_read_of_what_is_more_than_twice_as_long(length: int, first: int) -> None:
    assert first_read(length, 64) == first
    assert lengths_read(np.array([length]), 64).tolist() == [length - first]
    assert first_read(length, None) == 0
    assert lengths_read(np.array([length]), None).tolist() == [length]
