"""The whole job on a tiny pair: the draft learns a random target's true distributions."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from hotdraft.pipeline.loop.job_record import RunningJob
from hotdraft.pipeline.loop.jobs import JobRecords, JobRunningError
from hotdraft.pipeline.models.adapter_folder import AdapterBase, load_adapter
from hotdraft.pipeline.models.draft_vocabulary import choose_vocabulary, save_vocabulary
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out
from hotdraft.pipeline.store.connection import StoreError, open_client
from hotdraft.pipeline.store.domains import name_part
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.packing import DataError
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.batches.stream import PackedBatches
from hotdraft.training.fit.lora import merged_model
from hotdraft.training.fit.older_directions import OlderDirections
from hotdraft.training.online.context import JobError
from hotdraft.training.online.job import run_job
from hotdraft.training.scoring.evaluate import by_request, expected_acceptance_by_position
from tests.unit.training.online.jobs import with_distill

STRANGE_DOMAIN = "../a b=c:☃\n" + 300 * "x"

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


class ClientError(Exception):
    """What an object store's client raises, neither OSError nor ValueError."""


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
    assert not list((config.run_dir / "jobs").glob("*/checkpoints"))

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


def test_a_job_tells_its_step_its_loss_and_the_time_left(config, buffer, monkeypatch):
    told = []
    monkeypatch.setattr(RunningJob, "tell", lambda _, progress: told.append(progress))
    monkeypatch.setattr("hotdraft.training.fit.progress_bar.TELL_SECONDS", 0.0)
    run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    assert [progress.step for progress in told] == [*range(1, 41)]
    assert {progress.steps for progress in told} == {40}
    assert 0 < told[-1].loss < told[0].loss
    assert told[0].seconds_left > told[-2].seconds_left > told[-1].seconds_left == 0


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


def test_what_a_version_is_probed_with_is_nobodys_text(config, buffer):
    registry = AdapterRegistry(config)
    result = run_job(with_distill(config, max_steps=1), buffer=buffer, registry=registry)
    base = load_causal_lm(config.draft)
    adapter = load_adapter(registry.download(result.version), AdapterBase.of(base, fingerprint(config.draft)))
    [probed] = adapter.probe_ids.tolist()
    ends = [[*row["prompt_ids"], *row["output_ids"]][-len(probed) :] for row in buffer.load()]
    assert probed not in ends


@pytest.mark.parametrize("head_size", [None, 16])
def test_a_draft_that_is_padded_further_than_its_target_learns(config, target, serve, head_size):
    draft = load_causal_lm(config.draft)
    draft.resize_token_embeddings(72, mean_resizing=False)
    draft.save_pretrained(config.draft)
    buffer = ReplayBuffer(config.replay_url)
    buffer.append(serve(target, 40, top_k=64))
    narrow = config.model_copy(update={"engine": config.engine.model_copy(update={"draft_vocab_size": head_size})})
    result = run_job(narrow, buffer=buffer, registry=AdapterRegistry(config))
    assert result.promoted, result.verdict.reason


@pytest.mark.parametrize("method", ["log_artifacts", "set_registered_model_alias", "set_tag"])
def test_a_verdict_is_published_once_when_the_store_is_back_without_training_again(
    config, buffer, monkeypatch, store, method
):
    registry = AdapterRegistry(config)
    store.goes_away(method)
    with pytest.raises(StoreError, match="no route to the store"):
        run_job(config, buffer=buffer, registry=registry)
    unfinished = JobRecords(config.run_dir).unfinished()
    assert unfinished is not None
    monkeypatch.setattr(
        "hotdraft.training.online.train.train", lambda *_, **__: pytest.fail("it was trained already")
    )
    with pytest.raises(StoreError):
        run_job(config, buffer=buffer, registry=registry)
    store.is_back()
    result = run_job(config, buffer=buffer, registry=registry)
    assert (result.run_id, result.version, registry.champion()) == (unfinished.run_id, 1, 1)
    assert [version.status for version in registry.versions()] == ["champion"]
    assert registry.training_metrics(1)["gain"] == pytest.approx(result.verdict.gain)
    run = open_client(config).get_run(unfinished.run_id)
    assert (run.info.status, run.data.tags["draft_version"]) == ("FINISHED", "1")
    assert JobRecords(config.run_dir).unfinished() is None


def test_no_job_begins_while_the_store_is_away(config, buffer, store):
    store.goes_away("get_registered_model")
    with pytest.raises(StoreError):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    store.is_back()
    assert JobRecords(config.run_dir).unfinished() is None


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
    assert float(tags["gain"]) == pytest.approx(result.verdict.gain, abs=1e-6), (
        "shown rounded, it reads as the reason"
    )
    description = open_client(config).get_model_version("hotdraft-draft", "1").description
    assert f"[{run.info.run_name}]" in description
    assert f"learned from {len(trained_on)} requests" in description
    assert "#/models/hotdraft-draft/versions/1" in run.data.tags["mlflow.note.content"]


def test_what_a_refused_version_was_is_deleted_in_its_time_and_where_it_cannot_be_stays(
    config, buffer, monkeypatch, caplog
):
    kept_none = config.tracking.model_copy(update={"keep_refused": 0})
    strict = config.gate.model_copy(update={"min_gain": 0.9})
    config = with_distill(config.model_copy(update={"tracking": kept_none, "gate": strict}), max_steps=1)
    registry = AdapterRegistry(config)
    with monkeypatch.context() as away:
        away.setattr(registry, "forget_refused", Mock(side_effect=ClientError("access denied")))
        refused = run_job(config, buffer=buffer, registry=registry)
    assert caplog.text.count("stays in the store: access denied") == 1
    registry.download(refused.version)
    again = run_job(config, buffer=buffer, registry=registry)
    for version in (refused.version, again.version):
        with pytest.raises(RegistryError, match="were deleted"):
            registry.download(version)
    assert [job.state for job in JobRecords(config.run_dir).jobs()] == ["rejected"] * 2


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


def test_a_job_whose_adapter_the_draft_cannot_carry_says_so_and_ends_no_trainer(config, buffer):
    lora = config.distill.lora.model_copy(update={"target_modules": ["q_projj"]})
    with pytest.raises(JobError, match=r"no linear layer \['q_projj'\]"):
        run_job(with_distill(config, lora=lora), buffer=buffer, registry=AdapterRegistry(config))


def test_a_job_whose_requests_are_deleted_meanwhile_ends_with_a_reason(config, buffer, monkeypatch):
    """And not with what would end the trainer."""

    def gone(*_):
        raise DataError("none of the requests to learn from is left in the replay buffer")

    monkeypatch.setattr(PackedBatches, "batch", gone)
    with pytest.raises(JobError, match="none of the requests to learn from is left"):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config))


@pytest.mark.parametrize(("directions", "narrow"), [(4, False), (128, True), (0, False)])
def test_older_directions_are_left_alone_or_where_layers_are_narrow_half_is_rehearsed(
    config, buffer, target, serve, monkeypatch, directions, narrow
):
    buffer.append(serve(target, 40, domain="new", prefix="n", seed=3))
    shares, left_alone = [], []
    monkeypatch.setattr(ReplayDataModule, "rehearse_more", lambda _, share: shares.append(share))
    monkeypatch.setattr(
        OlderDirections, "on_train_batch_end", lambda self, *_: left_alone.append(self._factors[0][1].shape[1])
    )
    config = with_distill(config, older_directions=directions, older_fraction=0.2, mix_requests=8, max_steps=3)
    at_once = config.model_copy(update={"gate": config.gate.model_copy(update={"wait_seconds": 0.0})})
    run_job(at_once, buffer=buffer, registry=AdapterRegistry(at_once))
    assert shares == [0.5] * narrow
    assert left_alone == [directions] * 3 * (0 < directions < 128)
