"""Rounds and training steps on a device far away: the host waits for it once a round, to read what came of it.

See `far_device`, which tries all cases in a process of its own.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.device.far_device import PLANTED, ROUNDS

pytestmark = pytest.mark.slow

Found = dict[str, str | None]


@pytest.fixture(scope="module")
def found() -> Found:
    program = [sys.executable, "-m", "tests.unit.device.far_device"]
    root = Path(__file__).parents[3]
    done = subprocess.run(program, cwd=root, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", [*ROUNDS, "training", "training, prompts kept"])
def test_nothing_is_waited_for_and_nothing_is_in_two_places(found: Found, case: str) -> None:
    assert found[case] is None, found[case]


@pytest.mark.parametrize("fault", PLANTED)
@pytest.mark.parametrize("planted", ["planted", "planted in training"])
def test_a_fault_is_found(found: Found, planted: str, fault: str) -> None:
    assert found[f"{planted}: {fault}"] is not None
