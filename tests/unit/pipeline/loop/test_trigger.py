"""When a job is due, by what was recorded since the last."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from hotdraft.cli import app
from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.loop.job_record import JobWork, LastJob
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.loop.trigger import DistillTrigger
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out
from hotdraft.pipeline.replay.sample import NOT_DRAFTED, missed
from tests.unit.pipeline.loop.recorded import FRACTION, Clock, changed, samples, trained_on


def test_a_job_is_due_once_enough_was_rejected(config, buffer):
    trigger = DistillTrigger(config, buffer)
    assert not trigger.decide().due
    buffer.append(samples(0, 8))
    waiting = trigger.decide()
    assert not waiting.due
    assert waiting.new_requests == trained_on(0, 8)
    assert waiting.new_missed == 3 * trained_on(0, 8)
    assert f"{trained_on(0, 8)} of 10 new requests" in waiting.reason
    buffer.append(samples(8, 12))
    assert trigger.decide().due
    assert trigger.decide().new_requests == trained_on(0, 20)  # nothing is counted twice


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ("ar", "01"),  # a round ends with a rejection
        ("aab", "000"),  # or with the bonus of drafts that were all accepted
        ("aabaab", "000000"),
        ("ppp", "111"),  # nothing was drafted
        ("rp", "11"),
        ("aabp", "0001"),  # a plain round after the bonus
        ("paabr", "10001"),
    ],
)
def test_what_the_draft_missed(rounds, expected):
    """a: accepted, r: rejected, b: bonus, p: a round without drafts."""
    drafted_ids = np.array([5 if kind in "ar" else NOT_DRAFTED for kind in rounds], np.int32)
    accepted = np.array([kind == "a" for kind in rounds])
    assert missed(drafted_ids, accepted).tolist() == [digit == "1" for digit in expected]


def test_a_draft_too_bad_to_be_asked_calls_for_a_job(config, buffer):
    never_drafted = {"drafted_ids": np.full(8, NOT_DRAFTED, np.int32), "accepted": np.zeros(8, bool)}
    buffer.append([replace(sample, **never_drafted) for sample in samples(0, 20)])
    decision = DistillTrigger(config, buffer).decide()
    assert decision.due
    assert decision.new_missed == 8 * trained_on(0, 20)


def test_accepted_drafts_call_for_no_job(config, buffer):
    trigger = DistillTrigger(config, buffer)
    buffer.append(samples(0, 40, rejected=0))
    decision = trigger.decide()
    assert not decision.due
    assert decision.new_missed == 0


def test_what_another_target_answered_calls_for_no_job(config, buffer):
    """As a canary of another model does that records into the same bucket."""
    settings = changed(config, drift=0.1, drift_requests=8)
    trigger = DistillTrigger(settings, buffer, target_id="ours")
    buffer.append([replace(sample, target_id="ours") for sample in samples(0, 40, rejected=0)])
    buffer.append([replace(sample, target_id="another") for sample in samples(40, 80, rejected=8)])
    decision = trigger.decide()
    assert not decision.due
    assert (decision.new_requests, decision.new_missed) == (trained_on(0, 40), 0)
    assert "80 that another target answered do not count" in decision.reason
    told = DistillTrigger(settings, buffer, LastJob("r119", 0.0, promoted=True), target_id="ours").decide()
    assert not told.due
    assert told.new_requests == 0, "the newest that a job knew may be another target's"
    assert DistillTrigger(settings, buffer).decide().due, "where ours is not known all count"
    buffer.append([replace(sample, target_id="") for sample in samples(120, 40, rejected=8)])
    assert trigger.decide().due, "what may be ours counts"


def test_what_another_target_answered_is_nothing_to_judge_by(config, buffer):
    settings = config.model_copy(update={"gate": config.gate.model_copy(update={"min_requests": 4})})
    trigger = DistillTrigger(settings, buffer, target_id="ours")
    buffer.append([replace(sample, target_id="another") for sample in samples(0, 80)])
    assert "0 of 4 held-out prompts" in trigger.decide().reason


def test_counting_starts_anew_after_a_job_and_after_a_restart(config, buffer):
    buffer.append(samples(0, 30))
    trigger = DistillTrigger(config, buffer)
    assert trigger.decide().due
    trigger.reset(trigger.decide(), new_draft=True)
    assert not trigger.decide().due
    buffer.append(samples(30, 200))  # more than one read takes
    assert trigger.decide().new_requests == trained_on(30, 230)
    restarted = DistillTrigger(config, buffer, LastJob("r29", 0.0, promoted=True))
    assert restarted.decide().new_requests == trained_on(30, 230)
    unknown = DistillTrigger(config, buffer, LastJob("deleted", 0.0, promoted=True))
    assert unknown.decide().new_requests == trained_on(0, 230)


def test_what_the_last_job_knew_is_not_new_though_it_is_found_late(config, buffer):
    buffer.append(samples(0, 10))
    trigger = DistillTrigger(config, buffer, LastJob("r19", 0.0, promoted=True))
    assert trigger.decide().new_requests == trained_on(0, 10)
    buffer.append(samples(10, 20))
    assert trigger.decide().new_requests == trained_on(20, 30)


def test_what_came_is_new_though_what_the_last_job_knew_can_be_read_only_later(config, buffer, monkeypatch):
    buffer.append(samples(0, 10))
    at_first_away = buffer.append(samples(10, 10))
    buffer.append(samples(20, 20))
    reader = buffer._folder.reader

    def away(start: int, end: int) -> bytes:
        raise OSError("try again")

    last = LastJob("r19", 0.0, promoted=True)
    with monkeypatch.context() as patch:
        patch.setattr(buffer._folder, "reader", lambda name: away if name == at_first_away else reader(name))
        trigger, since = (DistillTrigger(config, buffer, last) for _ in range(2))
        since.reset(since.decide(), new_draft=False)
    assert trigger.decide().new_requests == trained_on(20, 40)
    assert since.decide().new_requests == trained_on(10, 20), "a later job has taken what was there"


def test_what_was_counted_is_read_again_only_once_some_of_it_is_deleted(config, buffer, monkeypatch):
    buffer.append(samples(0, 10))
    trigger = DistillTrigger(config, buffer)
    monkeypatch.setattr(buffer, "rows", None)
    assert trigger.decide() == trigger.decide()
    buffer.append(samples(10, 10))
    assert trigger.decide().new_requests == trained_on(0, 20)


def test_no_job_without_held_out_requests_for_the_gate(config, buffer):
    few = config.model_copy(update={"gate": config.gate.model_copy(update={"min_requests": 12})})
    buffer.append(samples(0, 40))
    decision = DistillTrigger(few, buffer).decide()
    assert not decision.due
    assert "of 12 held-out prompts" in decision.reason


def test_a_prompt_asked_again_is_one_to_the_gate(config, buffer):
    asked = next(sample for sample in samples(0, 40) if is_held_out(sample.prompt_ids, FRACTION))
    again = [replace(asked, request_id=f"again{index}") for index in range(9)]
    buffer.append([sample for sample in samples(0, 40) if not is_held_out(sample.prompt_ids, FRACTION)] + again)
    trigger = DistillTrigger(config, buffer)
    assert "1 of 2 held-out prompts" in trigger.decide().reason
    assert not trigger.decide().possible
    other = next(sample for sample in samples(40, 40) if is_held_out(sample.prompt_ids, FRACTION))
    buffer.append([other])
    assert trigger.decide().due


@pytest.mark.parametrize("reservoir", [0, 64], ids=["gone", "kept in the reservoir"])
def test_prompts_to_judge_by_count_for_as_long_as_they_are_there(config, reservoir):
    for_gate = [
        replace(sample, domain="its own") for sample in samples(0, 40) if is_held_out(sample.prompt_ids, FRACTION)
    ]
    others = [sample for sample in samples(0, 400) if not is_held_out(sample.prompt_ids, FRACTION)]
    buffer = ReplayBuffer(config.replay_url, max_bytes=100_000, reservoir_requests=reservoir)
    buffer.append(for_gate)
    trigger = DistillTrigger(config, buffer)
    for start in range(0, len(others), 20):
        buffer.append(others[start : start + 20])
        decision = trigger.decide()
    assert buffer.size().requests < len(others)
    assert (decision.due, decision.possible) == (bool(reservoir), bool(reservoir))
    assert reservoir or "0 of 2 held-out prompts" in decision.reason


def test_what_came_while_a_job_ran_is_the_next_jobs(config, buffer):
    trigger = DistillTrigger(config, buffer)
    buffer.append(samples(0, 30))
    taken = trigger.decide()
    buffer.append(samples(30, 30))
    trigger.decide()
    trigger.reset(taken, new_draft=True)
    assert trigger.decide().new_requests == trained_on(30, 60)
    assert trigger.decide().due


def test_time_calls_for_a_job_if_there_is_anything_new(config, buffer):
    clock = Clock()
    settings = changed(config, min_new_rejected=10_000, every_seconds=60.0, drift=None)
    trigger = DistillTrigger(settings, buffer, clock=clock)
    assert not trigger.decide().due, "there is nothing to learn from"
    assert not trigger.decide().possible
    buffer.append([replace(sample, created_at=100.0 + index) for index, sample in enumerate(samples(0, 20))])
    clock.now += 59
    assert not trigger.decide().due
    assert trigger.decide().possible
    clock.now += 2
    assert "61 s since the first request" in trigger.decide().reason
    trigger.reset(trigger.decide(), new_draft=True)
    buffer.append(samples(20, 20))
    clock.now += 59
    assert not trigger.decide().due
    clock.now += 2
    assert "61 s since the last job" in trigger.decide().reason
    told = DistillTrigger(settings, buffer, LastJob("r19", 161.0, promoted=False), clock=clock)
    assert told.decide() == trigger.decide()


def test_a_job_without_hope_has_the_next_wait_for_twice_as_much_up_to_a_bound(config, buffer):
    trigger, first = DistillTrigger(config, buffer), 0
    for refused, times in enumerate((1, 2, 4, 8, 8)):
        last = LastJob(f"r{first - 1}", 0.0, promoted=False, refused_in_a_row=refused) if first else None
        while not (decision := trigger.decide()).due:
            assert decision == DistillTrigger(config, buffer, last).decide()
            assert (f"({times} times as many, as jobs were refused" in decision.reason) == (times > 1)
            buffer.append(samples(first, 5, rejected=4))
            first += 5
        assert 10 * times <= decision.new_requests < 10 * times + 10
        trigger.reset(trigger.decide(), new_draft=False, refused_in_a_row=refused + 1)
    trigger.reset(trigger.decide(), new_draft=True)
    buffer.append(samples(first, 20, rejected=4))
    assert trigger.decide().due, "a better draft may be bettered"


def test_prompts_to_judge_by_that_the_draft_brings_need_not_be_recorded(config, buffer):
    settings = config.model_copy(update={"gate": config.gate.model_copy(update={"min_requests": 40})})
    buffer.append(samples(0, 20))
    assert "of 40 held-out prompts" in DistillTrigger(settings, buffer).decide().reason
    assert DistillTrigger(settings, buffer, held_out=40).decide().due


def test_jobs_keep_their_distance(config, buffer):
    clock = Clock()
    trigger = DistillTrigger(changed(config, cooldown_seconds=30.0), buffer, clock=clock)
    buffer.append(samples(0, 20))
    assert trigger.decide().due, "there was no job before"
    trigger.reset(trigger.decide(), new_draft=True)
    buffer.append(samples(20, 20))
    clock.now += 10
    assert "20 s of cool-down" in trigger.decide().reason
    told = DistillTrigger(changed(config, cooldown_seconds=30.0), buffer, LastJob("r19", 100.0, True), clock=clock)
    assert told.decide() == trigger.decide()
    clock.now += 20
    assert trigger.decide().due


def test_a_clock_that_is_set_back_makes_no_job_wait_until_it_is_as_late_again(config, buffer):
    clock = Clock()
    trigger = DistillTrigger(changed(config, cooldown_seconds=30.0), buffer, LastJob("r1", 9e9, True), clock=clock)
    buffer.append(samples(20, 20))
    assert "30 s of cool-down" in trigger.decide().reason
    clock.now += 31
    assert trigger.decide().due


def test_nor_does_it_for_the_first_job(config, buffer):
    clock = Clock()
    settings = changed(config, min_new_rejected=10_000, every_seconds=60.0, drift=None)
    buffer.append([replace(sample, created_at=9e9) for sample in samples(0, 20)])
    trigger = DistillTrigger(settings, buffer, clock=clock)
    assert not trigger.decide().due
    clock.now += 61
    assert "61 s since the first request" in trigger.decide().reason


def test_the_command_decides_as_the_trainer_beside_the_server_would(config, buffer, tmp_path, tiny_target):
    config = config.model_copy(update={"target": tiny_target})
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_defaults=True)))

    def decision() -> dict[str, object]:
        done = CliRunner().invoke(app, ["replay", "due", "--config", str(path), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    buffer.append(samples(0, 30))
    assert decision() == asdict(DistillTrigger(config, buffer).decide()) | {"loop_enabled": True}
    assert decision()["due"], "asking changes nothing"
    with JobRecords(config.run_dir).begin("loop") as job:
        job.note(JobWork(job.id, "recipe", last_request="r29", parent_version=0))
        job.end("accepted", "better")
    assert decision() == {
        "due": False,
        "reason": "waiting: 0 of 10 new requests, 0 of 30 newly missed tokens",
        "new_requests": 0,
        "new_missed": 0,
        "possible": False,
        "burst": None,
        "loop_enabled": True,
    }
    buffer.append([replace(sample, target_id="another") for sample in samples(60, 30)])
    assert not decision()["due"]
    buffer.append(samples(30, 30))
    assert decision()["due"]
    ControlFile(config.run_dir).switch_loop(False)
    told = decision()
    assert [told["due"], told["possible"], told["loop_enabled"]] == [False, True, False]
    assert told["reason"].startswith("the loop is off; ")
