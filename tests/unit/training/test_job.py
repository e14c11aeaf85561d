"""The whole job on a tiny pair: the draft learns a random target's true distributions."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from pipeline.adapters import AdapterBase, load_adapter
from pipeline.config import HotdraftConfig
from pipeline.draft_vocabulary import choose_vocabulary, save_vocabulary
from pipeline.jobs import JobRecords, JobRunningError
from pipeline.mlflow_store import name_part, open_client
from pipeline.models import fingerprint, load_causal_lm
from pipeline.registry import AdapterRegistry
from pipeline.replay import ReplayBuffer, is_held_out
from training.evaluate import by_request, expected_acceptance_by_position
from training.interruption import JobCancelledError
from training.job import JobError, run_job
from training.journal import JobJournal
from training.lora import merged_model
from training.run import JobInterruptedError

STRANGE_DOMAIN = "../a b=c:☃\n" + 300 * "x"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class StopAfter:
    """Says stop at the n-th time it is asked: thrice before training, then once a step."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def is_set(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.fixture
def target(make_llama):
    return make_llama(1, layers=1, scale=0.3)


@pytest.fixture
def config(target, disturb, tmp_path, empty_mlflow_db):
    (tmp_path / "run").mkdir()
    shutil.copy(empty_mlflow_db, tmp_path / "run")
    disturb(target).save_pretrained(tmp_path / "draft")
    return HotdraftConfig(
        target="unused",
        draft=str(tmp_path / "draft"),
        dtype="float32",
        device="cpu",
        run_dir=tmp_path / "run",
        replay={"held_out_fraction": 0.3},
        distill={
            "lora": {"rank": 4, "alpha": 8}, "learning_rate": 1e-2, "max_steps": 40, "batch_tokens": 256,
            "threads": 1,
        },
        gate={"min_requests": 4},
    )  # fmt: skip


@pytest.fixture
def buffer(config, target, serve):
    buffer = ReplayBuffer(config.replay_url)
    buffer.append(serve(target, 40))
    return buffer


def with_distill(config, **values):
    return config.model_copy(update={"distill": config.distill.model_copy(update=values)})


def test_a_draft_learns_is_promoted_and_a_spoiled_one_is_refused(config, buffer, target, serve):
    registry = AdapterRegistry(config)
    result = run_job(config, buffer=buffer, registry=registry)
    assert result.verdict.accepted, result.verdict.reason
    assert result.verdict.gain_low > 0.05
    assert result.version == registry.champion() == 1
    tags = registry.version(1).tags
    assert float(tags["gain"]) == pytest.approx(result.verdict.gain, abs=1e-3)
    assert registry.version(1).run_id == result.run_id
    base = load_causal_lm(config.draft)
    adapter = load_adapter(registry.download(1), AdapterBase.of(base, fingerprint(config.draft)), 4)
    assert adapter.card.requests + result.verdict.requests == 40
    assert adapter.vocabulary is None
    assert not list((config.run_dir / "jobs").glob("*/job.json"))

    # Later traffic whose answers and distributions are false together, but which the gate judges by the truth.
    shuffled = np.random.default_rng(0).permutation(64)
    false = [
        replace(sample, output_ids=shuffled[sample.output_ids].astype(np.int32))
        for sample in serve(target, 60, prefix="f", seed=2, permutation=shuffled)
    ]
    held_out_true = serve(target, 60, prefix="f", seed=2)
    false, held_out_true = (
        [replace(sample, domain=STRANGE_DOMAIN) for sample in samples] for samples in (false, held_out_true)
    )
    buffer.append(
        [good if is_held_out(good.request_id, 0.3) else bad for bad, good in zip(false, held_out_true, strict=True)]
    )
    second = run_job(with_distill(config, window_requests=45), buffer=buffer, registry=registry)
    assert not second.verdict.accepted
    assert second.verdict.gain < 0
    assert registry.version(second.version).status == "rejected"
    assert registry.champion() == 1
    tags = registry.version(second.version).tags
    assert tags["parent"] == "1"
    assert f"gain/{name_part(STRANGE_DOMAIN)}" in tags


def test_with_a_smaller_head_the_adapter_ranks_the_tokens_and_the_gate_judges_by_it(config, buffer, target, serve):
    registry = AdapterRegistry(config)
    narrow = config.model_copy(update={"engine": config.engine.model_copy(update={"draft_vocab_size": 16})})
    rare_first = torch.arange(63, -1, -1)
    save_vocabulary(Path(config.draft), rare_first)
    held_out = [s for s in serve(target, 40) if is_held_out(s.request_id, 0.3)]
    trained_on = [s for s in serve(target, 40) if not is_held_out(s.request_id, 0.3)]
    said = Counter(int(token) for s in trained_on for token in [*s.output_ids, *s.target_top_ids[:, 0]])
    expected = sorted(range(64), key=lambda token: (-said[token], -token if token not in said else token))

    result = run_job(with_distill(narrow, max_steps=1), buffer=buffer, registry=registry)
    base = load_causal_lm(config.draft)
    adapter = load_adapter(registry.download(result.version), AdapterBase.of(base, fingerprint(config.draft)), 4)
    assert adapter.vocabulary.tolist() == expected

    def score(model, ranking):
        chosen = choose_vocabulary([ranking], 16, 64)
        chances = expected_acceptance_by_position(model, held_out, batch_tokens=256, vocabulary=chosen)
        return by_request(chances).mean()

    found = result.metrics
    assert found["champion_expected_acceptance"] == pytest.approx(score(base, rare_first))
    assert found["candidate_expected_acceptance"] == pytest.approx(
        score(merged_model(base, adapter), adapter.vocabulary)
    )
    assert found["champion_expected_acceptance"] < found["candidate_expected_acceptance"]


def test_a_stopped_job_is_finished_by_the_next_and_not_begun_again(config, buffer, serve, target):
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError, match="step 3"):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(6))
    (state,) = [JobJournal(config).unfinished()]
    assert state is not None
    buffer.append(serve(target, 5, prefix="late"))
    result = run_job(config, buffer=buffer, registry=registry)
    assert result.run_id == state.run_id
    assert result.metrics["steps"] == 40
    journal = JobJournal(config)
    assert journal.unfinished() is None
    last = journal.last_job()
    assert (last.request, last.accepted) == ("r39", result.verdict.accepted)
    finished, stopped = JobRecords(config.run_dir).jobs()
    assert (stopped.state, stopped.run_id, stopped.version) == ("interrupted", state.run_id, None)
    assert "step 3" in stopped.reason
    assert (finished.state, finished.run_id, finished.version) == ("accepted", state.run_id, result.version)
    assert (finished.origin, finished.reason) == ("command", result.verdict.reason)
    assert finished.metrics["gain"] == result.verdict.gain
    assert finished.metrics["steps"] == 40
    assert stopped.started_at < stopped.ended_at < finished.started_at < finished.ended_at


class CancelAfter(StopAfter):
    """Never says stop; cancels the job that runs, as another process would, at the n-th time it is asked."""

    def __init__(self, steps: int, records: JobRecords) -> None:
        super().__init__(steps)
        self.records = records

    def is_set(self) -> bool:
        if super().is_set() and self.records.running().state == "running":
            self.records.cancel(self.records.running().id)
        return False


@pytest.mark.parametrize(("asked", "stage"), [(1, "draft"), (3, "training"), (20, "steps"), (44, "gate")])
def test_a_cancelled_job_is_dropped(config, buffer, asked, stage):
    registry, records = AdapterRegistry(config), JobRecords(config.run_dir)
    with pytest.raises(JobCancelledError):
        run_job(config, buffer=buffer, registry=registry, stop=CancelAfter(asked, records))
    [job] = records.jobs()
    assert job.state == "cancelled"
    run = open_client(config).get_run(job.run_id)
    assert run.info.status == "KILLED"
    assert ("loss" in run.data.metrics) == (stage in ("steps", "gate"))
    journal = JobJournal(config)
    assert journal.unfinished() is None
    assert journal.last_job() is None
    assert registry.versions() == []
    assert records.running() is None


def test_a_job_that_keeps_dying_or_was_begun_with_other_settings_is_dropped(config, buffer):
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config), stop=StopAfter(1))
    journal = JobJournal(config)
    state = journal.unfinished()
    assert JobJournal(with_distill(config, max_steps=7)).unfinished() is None
    journal.save(replace(state, attempts=3))
    assert journal.unfinished() is None
    assert not (config.run_dir / "jobs" / state.job_id).exists()


def test_a_loss_that_is_not_finite_ends_rejected(config, buffer):
    registry = AdapterRegistry(config)
    result = run_job(with_distill(config, learning_rate=1e30), buffer=buffer, registry=registry)
    assert not result.verdict.accepted
    assert "nan" in result.verdict.reason or "finite" in result.verdict.reason
    assert registry.champion() == 0


def test_a_champion_of_another_rank_is_not_continued(config, buffer, caplog):
    registry = AdapterRegistry(config)
    run_job(config, buffer=buffer, registry=registry)
    other = with_distill(config, lora=config.distill.lora.model_copy(update={"rank": 2}), max_steps=2)
    result = run_job(other, buffer=buffer, registry=registry)
    assert "rank 4, configured is rank 2" in caplog.text
    assert registry.version(result.version).tags["parent"] == "0"


def test_jobs_that_cannot_start_say_why(config, target, serve):
    registry = AdapterRegistry(config)
    buffer = ReplayBuffer(config.replay_url)
    with pytest.raises(JobError, match="buffer is empty"):
        run_job(config, buffer=buffer, registry=registry)
    buffer.append(serve(target, 5))
    with pytest.raises(JobError, match="held-out requests of 5"):
        run_job(config, buffer=buffer, registry=registry)
    with FileLock(config.run_dir / "jobs" / ".lock"), pytest.raises(JobError, match="another process"):
        run_job(config, buffer=buffer, registry=registry)
    running = JobRecords(config.run_dir).begin("loop")
    with pytest.raises(JobRunningError, match=running.id):
        run_job(config, buffer=buffer, registry=registry)
    states = [(job.origin, job.state) for job in JobRecords(config.run_dir).jobs()]
    assert states == [("loop", "running"), *3 * [("command", "failed")]]


def test_nan_weights_in_the_draft_are_noticed_before_the_first_step(config, buffer, make_llama):
    draft = make_llama(0, layers=1)
    with torch.no_grad():
        draft.model.norm.weight[0] = torch.nan
    draft.save_pretrained(config.draft)
    with pytest.raises(JobError, match="not finite"):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config))
