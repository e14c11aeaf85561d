"""Acceptance that falls calls for bursts, one after the other."""

from dataclasses import replace

import numpy as np
import pytest

from hotdraft.pipeline.loop.job_record import Burst, LastJob
from hotdraft.pipeline.loop.trigger import Decision, DistillTrigger
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import GUESSED
from tests.unit.pipeline.loop.recorded import changed, samples


def test_a_fall_of_the_newest_acceptance_calls_for_a_job(config, buffer):
    settings = changed(config, min_new_rejected=10_000, min_new_requests=100, drift=0.2, drift_requests=10)
    trigger = DistillTrigger(settings, buffer)
    buffer.append(samples(0, 30, rejected=2))
    assert not trigger.decide().due, "it has been like that all the time"
    buffer.append(samples(30, 14, rejected=6))
    assert trigger.decide().due, "though there are less than 100 new requests"
    assert "acceptance of the newest 10 requests fell by 0.441" in trigger.decide().reason
    taken = trigger.decide()
    trigger.reset(taken, new_draft=True)
    buffer.append(samples(44, 9, rejected=8))
    assert not trigger.decide().due, "what was before the job was another draft's"
    told = DistillTrigger(settings, buffer, LastJob("r43", 0.0, promoted=True, burst=taken.burst))
    assert told.decide() == trigger.decide()
    buffer.append(samples(53, 6, rejected=8))
    rejected = DistillTrigger(settings, buffer, LastJob("r43", 0.0, promoted=False))
    assert rejected.decide().due, "the draft is the one that was better before"


def test_the_few_tokens_that_a_draft_gets_where_text_guesses_the_rest_are_no_fall(config, buffer):
    settings = changed(config, min_new_rejected=10_000, min_new_requests=100, drift=0.2, drift_requests=10)
    trigger = DistillTrigger(settings, buffer)
    buffer.append(samples(0, 30, rejected=2))
    guessed = np.array([GUESSED] * 7 + [1], np.int32)
    few = [replace(one, drafted_ids=guessed, accepted=np.zeros(8, bool)) for one in samples(30, 40)]
    buffer.append(few)
    assert not trigger.decide().due
    buffer.append(samples(70, 14, rejected=6))
    assert trigger.decide().due


def test_a_fall_calls_for_a_burst_on_what_came_since(config, buffer):
    settings = changed(config, drift=0.2, drift_requests=10, drift_steps=7)

    def told() -> Decision:
        found = trigger.decide()
        assert found == DistillTrigger(settings, buffer).decide(), "a trigger that comes later decides alike"
        return found

    trigger = DistillTrigger(settings, buffer)
    buffer.append([*samples(0, 30, rejected=2), *samples(30, 8, rejected=6)])
    assert not told().due, "whatever else calls for a job"
    assert told().reason == "waiting: 8 of 10 requests since acceptance fell"
    buffer.append([*samples(90, 60, rejected=0), *samples(150, 5, rejected=6)])
    assert "7 of 10" in told().reason, "the fall before was another"
    buffer.append(samples(155, 10, rejected=6))
    assert told().due
    assert "acceptance of the newest 10 requests fell" in told().reason
    assert told().burst == Burst(7, 17)
    few = settings.model_copy(update={"distill": settings.distill.model_copy(update={"window_requests": 11})})
    assert DistillTrigger(few, buffer).decide().burst == Burst(7, 11)
    whole = DistillTrigger(changed(settings, drift_steps=None), buffer).decide()
    assert whole.due
    assert whole.burst is None


def fallen(config, buffer):
    """Settings, and a trigger that saw acceptance fall twenty requests ago."""
    settings = changed(
        config, min_new_requests=40, min_new_rejected=100, drift=0.2, drift_requests=10, drift_steps=7
    )
    trigger = DistillTrigger(settings, buffer)
    buffer.append([*samples(0, 30, rejected=2), *samples(30, 20, rejected=6)])
    return settings, trigger


def test_bursts_follow_one_another_each_longer_until_one_has_no_hope(config, buffer):
    settings, trigger = fallen(config, buffer)
    first = trigger.decide()
    assert first.burst == Burst(7, 20)
    trigger.reset(first, new_draft=True)
    buffer.append(samples(50, 6, rejected=4))
    assert trigger.decide().reason == "waiting: 6 of 10 new requests, 24 of 25 newly missed tokens"
    buffer.append(samples(56, 9, rejected=4))
    second = trigger.decide()
    assert (second.due, second.burst) == (True, Burst(14, 35)), "on all that came since acceptance fell"
    told = LastJob("r49", 0.0, promoted=True, burst=first.burst)
    assert DistillTrigger(settings, buffer, told).decide() == second
    trigger.reset(second, new_draft=False)
    buffer.append(samples(65, 15, rejected=4))
    third = trigger.decide()
    assert (third.due, third.burst) == (True, Burst(28, 50)), "the second seemed to gain, and is gone on with"
    trigger.reset(third, new_draft=False, refused_in_a_row=1)
    buffer.append(samples(80, 60, rejected=4))
    assert "of 80 new requests" in trigger.decide().reason
    refused = LastJob("r79", 0.0, promoted=False, refused_in_a_row=1, burst=third.burst)
    assert DistillTrigger(settings, buffer, refused).decide() == trigger.decide()


@pytest.mark.parametrize("promoted", [True, False])
def test_a_series_goes_on_though_what_it_began_with_is_deleted_or_acceptance_stays_low(config, buffer, promoted):
    settings, trigger = fallen(config, buffer)
    first = trigger.decide()
    trigger.reset(first, new_draft=promoted)
    buffer.append(samples(50, 15, rejected=7))
    second = trigger.decide()
    assert second.burst == Burst(14, 35)
    told = LastJob("r49", 0.0, promoted=promoted, burst=first.burst)
    assert DistillTrigger(settings, buffer, told).decide() == second
    left = ReplayBuffer(f"{settings.replay_url}/left")
    left.append(samples(49, 16, rejected=7))
    assert DistillTrigger(settings, left, told).decide().burst == second.burst


def test_a_burst_that_follows_asks_for_no_more_than_a_job_that_follows_none(config, buffer):
    settings, _ = fallen(config, buffer)
    short = changed(settings, min_new_requests=4)
    told = LastJob("r49", 0.0, promoted=True, burst=Burst(7, 20))
    reason = DistillTrigger(short, buffer, told).decide().reason
    assert reason == "waiting: 0 of 4 new requests, 0 of 100 newly missed tokens"


def test_what_would_be_as_long_as_any_job_is_one(config, buffer):
    settings = changed(config, drift=0.2, drift_requests=10, min_new_rejected=10)
    half = settings.distill.max_steps // 2
    buffer.append([*samples(0, 30, rejected=2), *samples(30, 35, rejected=6)])
    for steps, burst in ((half - 1, Burst(2 * half - 2, 35)), (half, None), (half + 1, None)):
        last = LastJob("r49", 0.0, promoted=True, burst=Burst(steps, 20))
        found = DistillTrigger(settings, buffer, last).decide()
        assert (found.due, found.burst) == (True, burst)


def test_a_fall_while_another_is_followed_begins_anew(config, buffer):
    _, trigger = fallen(config, buffer)
    trigger.reset(trigger.decide(), new_draft=True)
    buffer.append([*samples(50, 30, rejected=3), *samples(80, 25, rejected=8)])
    assert trigger.decide().burst == Burst(7, 25)


def test_a_fall_that_passed_while_a_burst_ran_ends_no_series(config, buffer):
    settings, trigger = fallen(config, buffer)
    first = trigger.decide()
    trigger.reset(first, new_draft=True)
    buffer.append([*samples(50, 25, rejected=3), *samples(75, 6, rejected=8), *samples(81, 20, rejected=3)])
    second = trigger.decide()
    assert second.burst == Burst(14, 71), "all that came since the fall that is followed"
    told = LastJob("r49", 0.0, promoted=True, burst=first.burst)
    assert DistillTrigger(settings, buffer, told).decide() == second


def test_a_young_fall_ends_no_series_before_it_has_lasted(config, buffer):
    _, trigger = fallen(config, buffer)
    trigger.reset(trigger.decide(), new_draft=True)
    buffer.append([*samples(50, 30, rejected=3), *samples(80, 5, rejected=8)])
    second = trigger.decide()
    assert second.burst == Burst(14, 55)
    trigger.reset(second, new_draft=False)
    buffer.append(samples(85, 16, rejected=8))
    third = trigger.decide()
    assert (third.due, third.burst) == (True, Burst(7, 21)), "it lasted: those that it began with are among these"


def test_no_drift_is_looked_for_if_none_is_asked_for(config, buffer):
    trigger = DistillTrigger(changed(config, min_new_rejected=10_000, drift=None, drift_requests=10), buffer)
    buffer.append(samples(0, 30, rejected=0))
    buffer.append(samples(30, 30, rejected=8))
    assert not trigger.decide().due


def test_acceptance_that_falls_is_not_waited_out(config, buffer):
    trigger = DistillTrigger(changed(config, drift=0.2, drift_requests=10), buffer)
    buffer.append(samples(0, 60, rejected=1))
    trigger.reset(trigger.decide(), new_draft=False, refused_in_a_row=3)
    buffer.append(samples(60, 20, rejected=7))
    assert trigger.decide().due
