"""What the registry is told of a verdict."""

from hotdraft.training.judging.gate import refused
from hotdraft.training.online.publish import gain_metrics


def test_a_verdict_that_measured_no_gain_tells_none() -> None:
    assert gain_metrics(refused("no unseen prompt of today's traffic", 38)) == {}
