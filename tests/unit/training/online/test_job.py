"""The whole job on a tiny pair: the draft learns a random target's true distributions."""

import itertools
import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from safetensors.torch import load_file, save_file

from hotdraft.pipeline.config.settings import HotdraftConfig, merged
from hotdraft.pipeline.loop.jobs import JobRecords, JobRunningError
from hotdraft.pipeline.models.adapter_folder import AdapterBase, load_adapter
from hotdraft.pipeline.models.draft_vocabulary import choose_vocabulary, save_vocabulary
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.schema import table_of
from hotdraft.pipeline.store.connection import StoreError, name_part, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import DOMAIN, save_mixture
from hotdraft.training.fit.lora import merged_model
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.judging.anchors import read_anchors
from hotdraft.training.judging.gate import judge
from hotdraft.training.online.context import JobCancelledError, JobError
from hotdraft.training.online.job import run_job
from hotdraft.training.online.journal import JobJournal, JobState
from hotdraft.training.online.publish import Judged
from hotdraft.training.scoring.evaluate import by_request, expected_acceptance_by_position

STRANGE_DOMAIN = "../a b=c:☃\n" + 300 * "x"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


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
    assert result.verdict.gain_low > 0.02
    assert result.version == registry.champion() == 1
    tags = registry.version(1).tags
    assert float(tags["gain"]) == pytest.approx(result.verdict.gain, abs=1e-3)
    assert registry.version(1).run_id == result.run_id
    base = load_causal_lm(config.draft)
    adapter = load_adapter(registry.download(1), AdapterBase.of(base, fingerprint(config.draft)))
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
        [good if is_held_out(good.prompt_ids, 0.3) else bad for bad, good in zip(false, held_out_true, strict=True)]
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
    held_out = [s for s in serve(target, 40) if is_held_out(s.prompt_ids, 0.3)]
    trained_on = [s for s in serve(target, 40) if not is_held_out(s.prompt_ids, 0.3)]
    said = Counter(int(token) for s in trained_on for token in [*s.output_ids, *s.target_top_ids[:, 0]])
    expected = sorted(range(64), key=lambda token: (-said[token], -token if token not in said else token))

    result = run_job(with_distill(narrow, max_steps=1), buffer=buffer, registry=registry)
    base = load_causal_lm(config.draft)
    adapter = load_adapter(registry.download(result.version), AdapterBase.of(base, fingerprint(config.draft)))
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


class Store:
    """Refuses the n-th call of a method of its clients, and all calls after it, until it is back."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def goes_away(self, method: str, call: int = 1) -> None:
        real, calls = getattr(MlflowClient, method), itertools.count(1)

        def refuse(client, *args, **kwargs):
            if next(calls) >= call:
                raise MlflowException("no route to the store")
            return real(client, *args, **kwargs)

        self._patch.setattr(MlflowClient, method, refuse)

    def is_back(self) -> None:
        self._patch.undo()


@pytest.fixture
def store():
    with pytest.MonkeyPatch.context() as patch:
        yield Store(patch)


@pytest.mark.parametrize("method", ["log_artifacts", "set_registered_model_alias", "set_tag"])
def test_a_verdict_is_published_once_when_the_store_is_back_without_training_again(
    config, buffer, monkeypatch, store, method
):
    registry = AdapterRegistry(config)
    store.goes_away(method)
    with pytest.raises(StoreError, match="no route to the store"):
        run_job(config, buffer=buffer, registry=registry)
    state = JobJournal(config).unfinished()
    assert state is not None
    monkeypatch.setattr(
        "hotdraft.training.online.train.train", lambda *_, **__: pytest.fail("it was trained already")
    )
    with pytest.raises(StoreError):
        run_job(config, buffer=buffer, registry=registry)
    store.is_back()
    result = run_job(config, buffer=buffer, registry=registry)
    assert (result.run_id, result.version, registry.champion()) == (state.run_id, 1, 1)
    assert [version.status for version in registry.versions()] == ["champion"]
    assert registry.training_metrics(1)["gain"] == pytest.approx(result.verdict.gain)
    run = open_client(config).get_run(state.run_id)
    assert (run.info.status, run.data.tags["draft_version"]) == ("FINISHED", "1")
    assert JobJournal(config).unfinished() is None


def test_a_store_that_goes_away_while_a_job_trains_costs_it_no_attempt(config, buffer, store):
    registry = AdapterRegistry(config)
    settings = with_distill(config, checkpoint_steps=10)
    store.goes_away("log_batch", call=3)
    for _ in range(4):
        with pytest.raises(StoreError):
            run_job(settings, buffer=buffer, registry=registry)
    state = JobJournal(settings).unfinished()
    assert state is not None
    assert state.attempts == 0
    store.is_back()
    result = run_job(settings, buffer=buffer, registry=registry)
    assert (result.run_id, result.metrics["steps"]) == (state.run_id, 40)


def test_a_version_that_a_person_rolled_back_is_not_promoted_by_a_job_that_ends_late(config, buffer, store):
    registry = AdapterRegistry(config)
    store.goes_away("set_tag")
    with pytest.raises(StoreError):
        run_job(config, buffer=buffer, registry=registry)
    store.is_back()
    assert registry.rollback(reason="by hand") == 0
    run_job(config, buffer=buffer, registry=registry)
    assert registry.champion() == 0
    assert registry.version(1).status == "rolled_back"


def test_a_gain_that_could_not_be_shown_is_built_upon_until_it_is_lost_or_another_version_serves(config, buffer):
    strict = config.model_copy(update={"gate": config.gate.model_copy(update={"min_gain": 0.9})})
    still = with_distill(strict, learning_rate=1e-12)
    registry = AdapterRegistry(config)

    def reached(settings, steps):
        result = run_job(settings, buffer=buffer, registry=registry, max_steps=steps)
        assert not result.verdict.accepted
        assert result.metrics["steps"] == steps
        return result.metrics["candidate_expected_acceptance"]

    first = reached(strict, 15)
    assert reached(still, 1) == pytest.approx(first, abs=1e-4), "it begins where the first ended"
    second = reached(strict, 15)
    assert second > first
    assert registry.champion() == 0, "none of it was served"

    harmful = strict.model_copy(update={"gate": strict.gate.model_copy(update={"max_domain_loss": 0.0})})
    damaged = reached(with_distill(harmful, learning_rate=5.0), 5)
    assert damaged < second
    bare = run_job(still, buffer=buffer, registry=registry, max_steps=1).metrics
    assert bare["candidate_expected_acceptance"] == pytest.approx(bare["champion_expected_acceptance"], abs=1e-4)

    kept = reached(strict, 15)
    registry.promote(3, reason="by hand")
    after = run_job(still, buffer=buffer, registry=registry, max_steps=1).metrics
    assert after["candidate_expected_acceptance"] == pytest.approx(after["champion_expected_acceptance"], abs=1e-4)
    assert after["candidate_expected_acceptance"] != pytest.approx(kept, abs=1e-3)


def test_a_draft_is_held_to_what_it_brings_of_its_pre_distillation(config, buffer, target, serve):
    known = serve(target, 60, prefix="m", seed=5)
    rows = ReplayRows.of(table_of(known))
    save_mixture(Path(config.draft), rows.select(range(40)), rows.select(range(40, 60)), 40, seed=0)
    result = run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    assert DOMAIN in result.verdict.by_domain
    tags = AdapterRegistry(config).version(result.version).tags
    assert json.loads(tags["train_domains"]).keys() == {"d"}, "no request of it was served"
    assert tags["train_first_request"] in {"r0", "r1", "r2", "r3"}


class Meanwhile(StopAfter):
    """Never says stop; does something at the n-th time it is asked."""

    def __init__(self, steps: int, act) -> None:
        super().__init__(steps)
        self.act = act

    def is_set(self) -> bool:
        if super().is_set() and self.act is not None:
            self.act, act = None, self.act
            act()
        return False


@pytest.fixture
def two_versions(config, buffer):
    """A registry in which version 2 serves, and 1 did before."""
    registry = AdapterRegistry(config)
    for seed in (1, 2):
        result = run_job(with_distill(config, seed=seed), buffer=buffer, registry=registry)
        if registry.champion() != result.version:
            registry.promote(result.version, reason="by hand")
    return registry


@pytest.mark.parametrize(("asked", "judgements"), [(20, 2), (45, 4)])
def test_a_champion_rolled_back_during_a_job_stays_so_unless_the_candidate_beats_the_one_that_serves(
    config, buffer, two_versions, asked, judgements, monkeypatch
):
    """While it trains, and after its verdict: the gate is told to accept whatever was judged against version 2."""
    judged_against = []

    def judge_by_parent(champion_scores, candidate_scores, *args, **kwargs):
        judged_against.append(float(champion_scores.mean()))
        verdict = judge(champion_scores, candidate_scores, *args, **kwargs)
        return replace(verdict, accepted=two_versions.champion() == 2)

    monkeypatch.setattr("hotdraft.training.online.contest.judge", judge_by_parent)
    stop = Meanwhile(asked, lambda: two_versions.rollback(reason="fell", version=2))
    result = run_job(config, buffer=buffer, registry=two_versions, stop=stop)
    assert stop.act is None
    assert len(judged_against) == judgements
    assert two_versions.champion() == 1, "not undone"
    found = two_versions.version(result.version)
    assert (found.status, found.tags["parent"], found.tags["judged_against"]) == ("rejected", "2", "1")
    assert float(found.tags["champion_expected_acceptance"]) == pytest.approx(judged_against[-1], abs=1e-4)
    assert not result.verdict.accepted


@pytest.mark.parametrize("published", [False, True])
def test_a_verdict_on_disk_against_a_champion_that_moved_is_judged_again_without_training(
    config, buffer, two_versions, store, monkeypatch, published
):
    monkeypatch.setattr(
        "hotdraft.training.online.contest.judge", lambda *args, **kw: replace(judge(*args, **kw), accepted=True)
    )
    store.goes_away("set_registered_model_alias" if published else "log_artifacts", call=2 if published else 1)
    with pytest.raises(StoreError):
        run_job(config, buffer=buffer, registry=two_versions)
    store.is_back()
    assert len(two_versions.versions()) == (3 if published else 2)
    before = Judged.load(JobJournal(config).job_folder(JobJournal(config).unfinished()))
    assert (before.champion, before.verdict.accepted) == (2, True)
    two_versions.rollback(reason="fell", version=2)
    monkeypatch.setattr(
        "hotdraft.training.online.train.train", lambda *_, **__: pytest.fail("it was trained already")
    )
    monkeypatch.setattr("hotdraft.training.online.contest.judge", judge)
    result = run_job(config, buffer=buffer, registry=two_versions)
    found = two_versions.version(result.version)
    assert found.tags["judged_against"] == "1"
    assert float(found.tags["gain"]) == pytest.approx(result.verdict.gain, abs=1e-4)
    assert result.verdict.gain != before.verdict.gain
    assert two_versions.champion() == (3 if result.verdict.accepted else 1)
    assert two_versions.version(2).status == "rolled_back"


def test_requests_that_come_while_a_job_trains_judge_it_and_those_it_learned_from_do_not(
    config, buffer, target, serve
):
    registry = AdapterRegistry(config)
    came = serve(target, 30, prefix="n", seed=5)
    learned = [sample for sample in serve(target, 40) if not is_held_out(sample.prompt_ids, 0.3)]
    repeats = [replace(sample, request_id=f"again-{sample.request_id}") for sample in learned]
    contradictory = replace(came[0], request_id="false", target_tail_logprob=came[0].target_tail_logprob * np.nan)
    stop = Meanwhile(20, lambda: buffer.append([*repeats, contradictory, *came]))
    result = run_job(config, buffer=buffer, registry=registry, stop=stop)
    held_out = 40 - len(learned)
    assert result.verdict.requests == held_out + len(came)
    assert int(registry.version(1).tags["train_requests"]) == len(learned)
    assert JobJournal(config).last_job().request == "r39", "they are the next job's to learn from"


def test_a_job_waits_for_prompts_of_todays_traffic_but_not_for_ever(config, buffer, target, serve, monkeypatch):
    waits = []

    def arrive(seconds):
        waits.append(seconds)
        buffer.append(serve(target, 4, domain="new", prefix=f"w{len(waits)}-", seed=50 + len(waits)))

    buffer.append(serve(target, 40, domain="new", prefix="new", seed=3))
    held = sum(is_held_out(s.prompt_ids, 0.3) for s in serve(target, 40, domain="new", prefix="new", seed=3))
    few = config.model_copy(update={"gate": config.gate.model_copy(update={"min_prompts": (held + 8) // 2})})
    monkeypatch.setattr("hotdraft.training.online.newcomers.time.sleep", arrive)
    result = run_job(few, buffer=buffer, registry=AdapterRegistry(config))
    assert len(waits) == 2
    assert result.verdict.by_domain.keys() == {"d", "new"}

    none = config.model_copy(
        update={"gate": config.gate.model_copy(update={"min_prompts": 500, "wait_seconds": 0})}
    )
    result = run_job(none, buffer=buffer, registry=AdapterRegistry(config))
    assert len(waits) == 2
    assert "500 are needed" in result.verdict.reason


def test_a_domain_is_held_against_the_best_it_ever_had(config, buffer, target, serve, monkeypatch):
    registry = AdapterRegistry(config)
    run_job(config, buffer=buffer, registry=registry)
    assert json.loads(registry.version(1).tags["best_by_domain"]) == {"itself": ["d"]}
    asked = []

    def remember(champion, candidate, *args, best_scores, **kwargs):
        asked.append((champion, best_scores))
        return replace(judge(champion, candidate, *args, best_scores=best_scores, **kwargs), accepted=True)

    monkeypatch.setattr("hotdraft.training.online.contest.judge", remember)
    for _ in range(2):  # taught what is false, and forced into service
        run_job(with_distill(config, learning_rate=0.3, max_steps=3, seed=3), buffer=buffer, registry=registry)
    assert registry.champion() == 3
    assert read_anchors(3, registry.version(3).tags) == read_anchors(2, registry.version(2).tags) == {"d": 1}
    champion, best = asked[-1]
    assert best.mean() > champion.mean() + 0.01, "version 1's, not version 2's"
    base = AdapterBase.of(load_causal_lm(config.draft), fingerprint(config.draft))
    adapter = load_adapter(registry.download(1), base)
    held_out = [sample for sample in serve(target, 40) if is_held_out(sample.prompt_ids, 0.3)]
    model = merged_model(load_causal_lm(config.draft), adapter)
    scores = by_request(expected_acceptance_by_position(model, held_out, batch_tokens=256))
    assert best == pytest.approx(scores)


def test_no_job_begins_while_the_store_is_away(config, buffer, store):
    store.goes_away("get_registered_model")
    with pytest.raises(StoreError):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    store.is_back()
    assert not list((config.run_dir / "jobs").glob("*/job.json"))


def test_run_and_version_tell_what_was_learned_from_and_how(config, buffer):
    registry = AdapterRegistry(config)
    result = run_job(with_distill(config, max_steps=2), buffer=buffer, registry=registry)
    run = open_client(config).get_run(result.run_id)
    assert run.data.params["lora.rank"] == "4"
    assert run.data.params["max_steps"] == "2"
    assert "nice" not in run.data.params
    assert run.data.tags["mlflow.source.name"] == "hotdraft distill"
    trained_on = [row for row in buffer.load() if not is_held_out(row["prompt_ids"], 0.3)]
    inputs = {entry.dataset.name: entry for entry in run.inputs.dataset_inputs}
    assert json.loads(inputs["replay-training"].dataset.source) == {"uri": config.replay_url}
    assert json.loads(inputs["replay-training"].dataset.profile)["num_rows"] == len(trained_on)
    assert [tag.value for tag in inputs["replay-gate"].tags] == ["gate"]
    assert inputs["replay-gate"].dataset.digest != inputs["replay-training"].dataset.digest

    tags = registry.version(result.version).tags
    assert int(tags["train_requests"]) == len(trained_on)
    assert int(tags["train_tokens"]) == sum(len(row["output_ids"]) for row in trained_on)
    assert tags["train_first_request"] == trained_on[0]["request_id"]
    assert tags["train_last_request"] == trained_on[-1]["request_id"]
    assert json.loads(tags["train_domains"]) == Counter(row["domain"] for row in trained_on)
    gate = json.loads(tags["gate_by_domain"])
    assert sum(of_domain["requests"] for of_domain in gate.values()) == result.verdict.requests
    for domain, gain in result.verdict.by_domain.items():
        assert gate[domain]["candidate"] - gate[domain]["champion"] == pytest.approx(gain, abs=2e-4)
    description = open_client(config).get_model_version("hotdraft-draft", "1").description
    assert f"learned from {len(trained_on)} requests" in description
    assert "#/models/hotdraft-draft/versions/1" in run.data.tags["mlflow.note.content"]


@pytest.mark.parametrize(
    "change",
    [
        {"target": "other"},
        {"draft": "weights"},
        {"dtype": "bfloat16"},
        {"engine": {"draft_vocab_size": 16}},
        {"replay": {"held_out_fraction": 0.31}},
        {"gate": {"max_domain_loss": 0.06}},
        {"distill": {"window_requests": 45}},
    ],
    ids=lambda change: str(*change),
)
def test_a_job_begun_under_another_recipe_is_not_gone_on_with(config, change):
    journal = JobJournal(config)
    journal.save(JobState("job", journal.recipe, last_request="r1", parent_version=0, run_id="run"))
    assert JobJournal(config).unfinished() is not None
    same = {"distill": {"nice": 19, "threads": 2}, "gate": {"wait_seconds": 1}, "server": {"port": 1}}
    told = config.model_dump(mode="json")
    assert JobJournal(HotdraftConfig(**merged(told, same))).unfinished() is not None
    if change == {"draft": "weights"}:  # under the same name
        weights = load_file(Path(config.draft) / "model.safetensors")
        name = min(weights)
        save_file({**weights, name: weights[name] + 1}, Path(config.draft) / "model.safetensors")
        change = {}
    assert JobJournal(HotdraftConfig(**merged(told, change))).unfinished() is None


@pytest.mark.parametrize("why", ["other settings", "died 3 times"])
def test_a_job_that_keeps_dying_or_was_begun_with_other_settings_is_dropped(config, buffer, why):
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    client, journal = open_client(config), JobJournal(config)
    state = journal.unfinished()
    assert client.get_run(state.run_id).info.status == "RUNNING", "it is to be gone on with"
    settings = with_distill(config, max_steps=2)
    if why == "died 3 times":
        settings = config
        journal.save(replace(state, attempts=3))
    assert JobJournal(settings).unfinished() is None
    folder = journal.job_folder(state)
    assert folder.exists(), "looking drops nothing"
    with pytest.raises(JobInterruptedError):
        run_job(settings, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert not folder.exists()
    assert client.get_run(state.run_id).info.status == "KILLED"
    assert JobJournal(settings).unfinished().run_id != state.run_id


BROKEN = [b"", b"{", b"[]", b"\xff", b'{"job_id": 5}', b'{"last_request": null}']


@pytest.mark.parametrize("content", BROKEN, ids=repr)
def test_a_broken_account_of_the_last_job_is_set_aside_and_told_once(config, caplog, content):
    journal = JobJournal(config)
    path = journal.folder / "last.json"
    path.write_bytes(content)
    assert [journal.last_job(), JobJournal(config).last_job()] == [None, None]
    assert [str(path) in record.message for record in caplog.records] == [True]
    assert path.with_name("last.json.broken").read_bytes() == content


@pytest.mark.parametrize("content", [*BROKEN[:4], b'{"job_id": "../records", "recipe": "RECIPE"}'], ids=repr)
def test_a_job_whose_state_is_broken_is_swept_and_its_run_ended(config, buffer, caplog, content):
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    client, journal = open_client(config), JobJournal(config)
    state = journal.unfinished()
    path = journal.job_folder(state) / "job.json"
    path.write_bytes(content)
    assert journal.unfinished() is None
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert len([record for record in caplog.records if str(path) in record.message]) == 1
    assert not path.parent.exists()
    assert (journal.folder / f"{state.job_id}-job.json.broken").read_bytes() == content
    assert client.get_run(state.run_id).info.status == "KILLED"
    assert journal.unfinished().run_id != state.run_id


def test_a_job_killed_once_its_run_was_made_leaves_none_running(config, buffer, monkeypatch):
    """Killed before it could write down which it was."""
    registry, saved = AdapterRegistry(config), []
    save = JobJournal.save

    def killed_at_the_second(journal, state):
        saved.append(state)
        if len(saved) == 2:
            raise SystemExit
        save(journal, state)

    with monkeypatch.context() as patched:
        patched.setattr(JobJournal, "save", killed_at_the_second)
        with pytest.raises(SystemExit):
            run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    journal = JobJournal(config)
    assert (saved[0].run_id, journal.unfinished().run_id) == ("", "")
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert journal.unfinished().run_id == saved[1].run_id, "the next job goes on with it"

    journal.save(replace(saved[0], attempts=3))
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert open_client(config).get_run(saved[1].run_id).info.status == "KILLED"


def test_what_a_job_killed_while_its_folder_was_deleted_left_is_swept(config, buffer, monkeypatch):
    registry, journal = AdapterRegistry(config), JobJournal(config)

    def killed(folder, rmtree=shutil.rmtree, **options):
        if folder.parent.name != "dropped":
            return rmtree(folder, **options)
        (folder / "job.json").unlink()
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr("hotdraft.training.online.journal.shutil.rmtree", killed)
        with pytest.raises(SystemExit):
            run_job(with_distill(config, max_steps=2), buffer=buffer, registry=registry)
    half = journal.folder / "20260101-000000-abcdef"  # as older versions left them
    (half / "checkpoints").mkdir(parents=True)
    assert len(journal.leftovers()) == 2
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(1))
    assert journal.leftovers() == []
    assert not half.exists()
    assert (journal.folder / "records").is_dir()


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"verdict": null}'], ids=repr)
def test_a_broken_verdict_is_reached_again(config, buffer, monkeypatch, content):
    config, registry = with_distill(config, max_steps=2), AdapterRegistry(config)
    with monkeypatch.context() as patched:
        patched.setattr(JobJournal, "finish", lambda *_, **__: sys.exit())
        with pytest.raises(SystemExit):
            run_job(config, buffer=buffer, registry=registry)
    journal = JobJournal(config)
    state = journal.unfinished()
    (journal.job_folder(state) / "judged.json").write_bytes(content)
    assert run_job(config, buffer=buffer, registry=registry).run_id == state.run_id


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
    assert "starting afresh: the champion was trained with other LoRA settings" in caplog.text
    assert registry.version(result.version).tags["parent"] == "0"


def test_jobs_that_cannot_start_say_why(config, target, serve):
    registry = AdapterRegistry(config)
    buffer = ReplayBuffer(config.replay_url)
    with pytest.raises(JobError, match="buffer is empty"):
        run_job(config, buffer=buffer, registry=registry)
    buffer.append(serve(target, 5))
    with pytest.raises(JobError, match="held-out prompts in 5 requests"):
        run_job(config, buffer=buffer, registry=registry)
    running = JobRecords(config.run_dir).begin("loop")
    with pytest.raises(JobRunningError, match=running.id):
        run_job(config, buffer=buffer, registry=registry)
    states = [(job.origin, job.state) for job in JobRecords(config.run_dir).jobs()]
    assert states == [("loop", "running"), *2 * [("command", "failed")]]


def test_nan_weights_in_the_draft_are_noticed_before_the_first_step(config, buffer, make_llama):
    draft = make_llama(0, layers=1)
    with torch.no_grad():
        draft.model.norm.weight[0] = torch.nan
    draft.save_pretrained(config.draft)
    with pytest.raises(JobError, match="not finite"):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config))
