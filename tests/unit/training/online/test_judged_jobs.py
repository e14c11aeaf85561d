"""What a job is judged by, and against which champion."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.models.adapter_folder import AdapterBase, load_adapter
from hotdraft.pipeline.models.loading import fingerprint, load_causal_lm, weights_id
from hotdraft.pipeline.replay.buffer import ReplayBuffer, is_held_out, sample_from_row
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.schema import table_of
from hotdraft.pipeline.store.connection import StoreError, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import DOMAIN, save_mixture
from hotdraft.training.fit.lora import merged_model
from hotdraft.training.judging.anchors import anchors_tag, read_anchors
from hotdraft.training.judging.evidence import VersionScores
from hotdraft.training.judging.gate import judge
from hotdraft.training.judging.resident import Resident
from hotdraft.training.online.context import JobError
from hotdraft.training.online.job import run_job
from hotdraft.training.scoring.evaluate import by_request, expected_acceptance_by_position
from hotdraft.training.scoring.rehearsal import Teacher
from tests.unit.training.online.jobs import Meanwhile, with_distill

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


@torch.no_grad()
def greedy(target, sample):
    """`sample` with the answer that `target` gives at temperature 0."""
    ids, logprobs = torch.tensor(sample.prompt_ids, dtype=torch.long), []
    for _ in sample.output_ids:
        logprobs.append(target(ids[None]).logits[0, -1].log_softmax(-1))
        ids = torch.cat([ids, logprobs[-1].argmax()[None]])
    top, top_ids = torch.stack(logprobs).topk(16)
    return replace(
        sample,
        output_ids=ids[len(sample.prompt_ids) :].numpy().astype(np.int32),
        target_top_ids=top_ids.numpy().astype(np.int32),
        target_top_logprobs=top.numpy().astype(np.float16),
        target_tail_logprob=(1 - top.exp().sum(-1)).clamp_min(1e-9).log().numpy(),
    )


def test_a_version_that_a_person_rolled_back_is_not_promoted_by_a_job_that_ends_late(config, buffer, store):
    registry = AdapterRegistry(config)
    store.goes_away("set_tag")
    with pytest.raises(StoreError):
        run_job(config, buffer=buffer, registry=registry)
    store.is_back()
    assert registry.rollback(reason="by hand") == 0
    assert not run_job(config, buffer=buffer, registry=registry).promoted
    assert registry.champion() == 0
    assert registry.version(1).status == "rolled_back"


def test_while_a_champion_is_pinned_a_job_publishes_what_passed_the_gate_and_does_not_promote_it(config, buffer):
    registry = AdapterRegistry(config)
    assert run_job(config, buffer=buffer, registry=registry).verdict.accepted
    registry.rollback(reason="", by_hand=True)
    result = run_job(with_distill(config, seed=2), buffer=buffer, registry=registry)
    assert result.verdict.accepted
    found = registry.version(2)
    assert (registry.champion(), found.status) == (0, "candidate")
    assert found.tags["reason"].startswith("passed the gate: gain +0.")
    assert found.tags["reason"].endswith("; not promoted, as serving without an adapter is pinned by hand")
    last = JobRecords(config.run_dir).jobs()[0]
    assert (last.state, last.version, last.reason) == ("accepted", 2, found.tags["reason"])
    assert [result.promoted, last.promoted] == [False, False], "nor is the draft told to be a new one"
    registry.unpin()
    third = run_job(with_distill(config, seed=3), buffer=buffer, registry=registry)
    assert third.promoted
    assert third.version == registry.champion()


def test_what_a_candidate_did_is_what_its_version_does_and_is_not_asked_again(config, buffer):
    registry, resident = AdapterRegistry(config), Resident()
    version = run_job(config, buffer=buffer, registry=registry, resident=resident).version
    assert registry.champion() == version
    known = resident.scores[version]
    samples = [sample_from_row(row) for row in buffer.load().with_format("numpy") if row["request_id"] in known]
    assert len(samples) == len(known) > 4
    draft = resident.draft(config.draft, config)
    afresh = VersionScores(draft, registry, config.distill, samples).of_champion(version)
    assert [known[sample.request_id] for sample in samples] == pytest.approx(afresh.tolist(), abs=1e-6)


def test_what_versions_of_a_registry_did_is_not_taken_for_what_those_of_another_do(config, buffer, serve, target):
    """Somebody deletes the registered model in MLflow's pages, say, while a trainer runs."""
    registry, resident, [asked] = AdapterRegistry(config), Resident(), serve(target, 1, prefix="asked")
    assert run_job(config, buffer=buffer, registry=registry, resident=resident).version == 1
    draft = resident.draft(config.draft, config).base
    of_former = resident.rehearsal.taught(lambda _: Teacher(1, draft), [asked], 8)
    resident.scores[1]["asked"] = 0.5
    open_client(config).delete_registered_model(config.tracking.registered_model)
    again = run_job(with_distill(config, seed=2), buffer=buffer, registry=registry, resident=resident)
    assert again.version == 1
    assert len(resident.scores[1]) > 4
    assert "asked" not in resident.scores[1]
    of_latter = resident.rehearsal.taught(lambda _: Teacher(1, target), [asked], 8)
    assert (of_former[0].target_top_logprobs != of_latter[0].target_top_logprobs).any()


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
    assert JobRecords(config.run_dir).last_job().request == "r39", "they are the next job's to learn from"


def test_a_job_waits_for_prompts_of_todays_traffic_but_not_for_ever(
    config, buffer, target, serve, monkeypatch, caplog
):
    caplog.set_level("INFO")
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
    assert "and the gate needs 500: it is rejected unless more come" in caplog.text, "before it trains"


def test_no_job_is_judged_by_what_is_all_but_what_it_learned_from(config, target, serve):
    """A client that asks the same with another nonce each time has some of its prompts held out."""
    [one] = serve(target, 1, prefix="n", seed=4)
    prompts = [np.array([*range(40), number], np.int32) for number in range(30)]
    nonces = [replace(one, prompt_ids=prompt, request_id=f"n{prompt[-1]}") for prompt in prompts]
    assert sum(is_held_out(one.prompt_ids, 0.3) for one in nonces) > 4
    buffer = ReplayBuffer.of(config)
    others = serve(target, 40)
    buffer.append([*nonces, *others])
    result = run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    assert result.verdict.requests <= sum(is_held_out(one.prompt_ids, 0.3) for one in others)


def test_a_domain_is_held_against_the_best_it_ever_had(config, buffer, target, serve, monkeypatch):
    registry = AdapterRegistry(config)
    run_job(config, buffer=buffer, registry=registry)
    assert json.loads(registry.version(1).tags["best_by_domain"]) == {"itself": ["d"]}
    asked = []

    def remember(champion, candidate, *args, best_scores, **kwargs):
        asked.append((champion, best_scores))
        assert kwargs["tokens"].tolist() == [24] * len(champion)
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


def test_names_of_tenants_long_gone_keep_no_domain_of_today_from_being_held_to_its_best(config, buffer):
    registry = AdapterRegistry(config)
    champion = run_job(config, buffer=buffer, registry=registry).version
    names = [f"tenant-{number:0{digits}}" for digits in (40, 3) for number in range(200)]
    gone = anchors_tag({name: index % 9 + 100 for index, name in enumerate(names)}, better=[])
    registry.tell(champion, gone)
    again = run_job(with_distill(config, seed=2, max_steps=2), buffer=buffer, registry=registry).version
    assert read_anchors(again, registry.version(again).tags)["d"] == champion
    assert len(registry.version(again).tags["best_by_domain"]) > 4000, "of the others as many as fit"


UNLIKE = "are not what was served"


@pytest.fixture
def accepted(target, serve):
    """Greedy requests, all of whose tokens were drafted by version 0 and accepted."""
    served = [greedy(target, one) for one in serve(target, 40, temperature=0.0)]
    return [
        replace(one, drafted_ids=one.output_ids, accepted=one.drafted_ids > -9, draft_versions=0 * one.drafted_ids)
        for one in served
    ]


def test_a_draft_is_not_refused_for_what_the_one_before_it_in_the_run_directory_did(config, accepted):
    """Without an adapter either is version 0."""

    def reason(draft_id):
        buffer = ReplayBuffer(f"{config.replay_url}-{draft_id}")
        buffer.append([replace(one, draft_id=draft_id) for one in accepted])
        settings = with_distill(config, max_steps=2)
        return run_job(settings, buffer=buffer, registry=AdapterRegistry(config)).verdict.reason

    assert UNLIKE in reason(weights_id(config.draft))
    assert UNLIKE not in reason("former")


def test_a_version_is_not_refused_for_what_one_of_its_number_did_in_a_store_before(config, buffer, accepted):
    registry = AdapterRegistry(config)
    version = run_job(config, buffer=buffer, registry=registry).version

    def reason(at):
        other = ReplayBuffer(f"{config.replay_url}-{at}")
        versions = np.full_like(accepted[0].draft_versions, version)
        other.append([replace(one, created_at=at, draft_versions=versions) for one in accepted])
        return run_job(with_distill(config, max_steps=2), buffer=other, registry=registry).verdict.reason

    assert registry.champion() == version
    assert UNLIKE not in reason(registry.version(version).created_at - 1)
    assert UNLIKE in reason(registry.version(version).created_at + 1)


def test_a_draft_is_held_to_what_it_brings_of_its_pre_distillation(config, buffer, target, serve):
    known = serve(target, 60, prefix="m", seed=5)
    rows = ReplayRows.of(table_of(known))
    save_mixture(Path(config.draft), rows.select(range(40)), rows.select(range(40, 60)), 40, seed=0)
    result = run_job(config, buffer=buffer, registry=AdapterRegistry(config))
    assert DOMAIN in result.verdict.by_domain
    tags = AdapterRegistry(config).version(result.version).tags
    assert json.loads(tags["train_domains"]).keys() == {"d"}, "no request of it was served"
    assert tags["train_first_request"] in {"r0", "r1", "r2", "r3"}


def test_where_all_that_was_served_is_junk_a_draft_that_brings_a_mixture_says_so(config, target, serve):
    known = ReplayRows.of(table_of(serve(target, 60, prefix="m", seed=5)))
    save_mixture(Path(config.draft), known.select(range(40)), known.select(range(40, 60)), 40, seed=0)
    buffer = ReplayBuffer.of(config)
    buffer.append([
        replace(one, target_top_logprobs=np.full_like(one.target_top_logprobs, np.nan)) for one in serve(target, 30)
    ])  # fmt: skip
    with pytest.raises(JobError, match="none of 30 recorded requests can be learned from, 30 of them contradict"):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config))


def test_where_all_prompts_are_too_long_a_job_says_so_and_what_to_set(config, buffer):
    config = with_distill(config, max_length=2)
    says = "none of 40 .* 0 of them contradict .*, 40 have prompts of more than 2 tokens: .* distill.max_length"
    with pytest.raises(JobError, match=says):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config))
