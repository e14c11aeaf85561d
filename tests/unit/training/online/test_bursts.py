"""A short job for what is new: it learns that alone, and is judged at what it costs."""

import numpy as np
import pytest
import torch

from hotdraft.pipeline.loop.job_record import Burst
from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.models.loading import load_causal_lm
from hotdraft.pipeline.replay.buffer import is_held_out
from hotdraft.pipeline.store.connection import open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.fit.resume import JobInterruptedError
from hotdraft.training.judging.served_draft import ServedDraft
from hotdraft.training.online.context import JobContext, JobGaveWayError
from hotdraft.training.online.job import run_job
from tests.unit.training.online.jobs import StopAfter, with_distill

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture
def config(config):
    """Whose gate takes what loses nothing, and waits for no more requests."""
    gate = config.gate.model_copy(update={"min_gain": -1.0, "wait_seconds": 0.0})
    return config.model_copy(update={"gate": gate})


def test_a_burst_that_was_stopped_is_gone_on_with_as_that_burst(config, buffer, target, serve):
    buffer.append(serve(target, 20, domain="new", prefix="n", seed=3))
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(6), burst=Burst(7, 12))
    assert JobRecords(config.run_dir).unfinished().work.burst == Burst(7, 12)
    result = run_job(config, buffer=buffer, registry=registry)
    assert result.metrics["steps"] == 7
    params = open_client(config).get_run(result.run_id).data.params
    assert (params["max_steps"], params["window_requests"], params["mix_requests"]) == ("7", "12", "12")


def test_a_burst_gives_way_to_nothing_also_where_it_is_gone_on_with(config, buffer, target, serve):
    buffer.append(serve(target, 20, domain="new", prefix="n", seed=3))
    registry = AdapterRegistry(config)
    with pytest.raises(JobInterruptedError):
        run_job(config, buffer=buffer, registry=registry, stop=StopAfter(6), burst=Burst(7, 12))
    result = run_job(config, buffer=buffer, registry=registry, urgent=lambda: "something new")
    assert result.metrics["steps"] == 7


def test_a_burst_takes_larger_steps(config, buffer, target, serve):
    config = with_distill(config, learning_rate=1e-3, max_steps=28)
    buffer.append(serve(target, 20, domain="new", prefix="n", seed=3))
    client, registry = open_client(config), AdapterRegistry(config)
    rates = {}
    for burst in (Burst(7, 12), None):
        result = run_job(config, buffer=buffer, registry=registry, burst=burst)
        rates[burst] = float(client.get_run(result.run_id).data.params["learning_rate"])
    assert rates == {Burst(7, 12): pytest.approx(2e-3), None: 1e-3}


def test_the_shortest_of_bursts_takes_steps_of_four_times_the_size(config):
    context = JobContext(with_distill(config, learning_rate=1e-3, max_steps=10_000), *[None] * 6)
    assert context.being(Burst(7, 12)).config.distill.learning_rate == 4e-3


def test_a_job_that_gives_way_is_dropped_and_one_that_is_trained_does_not(config, buffer):
    registry = AdapterRegistry(config)
    asked = []

    def urgent():
        asked.append(True)
        return "something new" if len(asked) == 10 else None

    with pytest.raises(JobGaveWayError, match="gave way: something new"):
        run_job(config, buffer=buffer, registry=registry, urgent=urgent)
    [job] = JobRecords(config.run_dir).jobs()
    assert (job.state, job.reason) == ("cancelled", "gave way: something new")
    assert open_client(config).get_run(job.run_id).info.status == "KILLED"
    assert JobRecords(config.run_dir).unfinished() is None
    asked.extend(10 * [True])
    run_job(config, buffer=buffer, registry=registry, urgent=urgent)
    steps, stages = 40, 4
    assert len(asked) == 20 + stages + steps


def test_what_is_new_is_what_a_burst_learns_though_most_recorded_requests_are_others(
    config, buffer, target, serve, monkeypatch
):
    buffer.append(serve(target, 20, domain="new", prefix="n", seed=3))
    pools = []

    def remember(model, data, *_, **__):
        pools.extend(data._pools)
        raise JobInterruptedError("seen")

    monkeypatch.setattr("hotdraft.training.online.train.train", remember)
    with pytest.raises(JobInterruptedError, match="seen"):
        run_job(config, buffer=buffer, registry=AdapterRegistry(config), burst=Burst(7, 12))
    today = next(pool for pool in pools if not pool.older)
    is_new = today.rows >= sum(not is_held_out(sample.prompt_ids, 0.3) for sample in serve(target, 40))
    assert len(today.rows)
    assert is_new.all()


def test_no_more_candidates_are_asked_than_it_takes(config, buffer, target, serve, monkeypatch):
    buffer.append(serve(target, 20, domain="new", prefix="n", seed=3))
    asked, real = [], ServedDraft.chances

    def count(draft, adapter, samples, *args):
        if adapter is not None:
            asked.append({sample.domain for sample in samples})
        return real(draft, adapter, samples, *args)

    monkeypatch.setattr(ServedDraft, "chances", count)
    settings = with_distill(config, max_steps=20, window_requests=20, mix_requests=20)
    result = run_job(settings, buffer=buffer, registry=AdapterRegistry(config))
    assert result.verdict.accepted, result.verdict.reason
    assert result.verdict.by_domain.keys() == {"d", "new"}
    assert asked == [{"d", "new"}]
    assert result.metrics["blend"] == max(config.distill.blends)


def test_where_the_candidate_that_went_furthest_loses_the_next_is_asked(config, buffer, target, serve, monkeypatch):
    buffer.append(serve(target, 20, domain="new", prefix="n", seed=3))
    real = ServedDraft.chances
    whole = []

    def forget(draft, adapter, samples, *args):
        """The first that is asked has lost all of the old domain."""
        found = real(draft, adapter, samples, *args)
        if adapter is None:
            return found
        whole.append(adapter)
        lost = [sample.domain == "d" and len(whole) == 1 for sample in samples]
        return [np.zeros_like(of) if gone else of for of, gone in zip(found, lost, strict=True)]

    monkeypatch.setattr(ServedDraft, "chances", forget)
    settings = with_distill(config, max_steps=20, window_requests=20, mix_requests=20, blends=[1.0, 0.75])
    result = run_job(settings, buffer=buffer, registry=AdapterRegistry(config))
    assert len(whole) == 2
    assert result.verdict.accepted, result.verdict.reason
    assert result.metrics["blend"] == 0.75


def test_older_domains_rehearse_what_the_draft_says_where_no_version_was_better(config, buffer, monkeypatch):
    registry = AdapterRegistry(config)
    champion = run_job(config, buffer=buffer, registry=registry).version
    teachers = []

    def remember(model, data, *_, **__):
        teachers.append(data.batches.keywords["rehearse"].args[0])
        raise JobInterruptedError("seen")

    monkeypatch.setattr("hotdraft.training.online.train.train", remember)
    monkeypatch.setattr(
        "hotdraft.training.judging.teachers.read_anchors", lambda *_: {"old": 0, "lately": champion}
    )
    with pytest.raises(JobInterruptedError, match="seen"):
        run_job(config, buffer=buffer, registry=registry)
    [teacher_of] = teachers
    draft = load_causal_lm(config.draft, dtype=torch.float32, device=torch.device("cpu"))
    weights = {domain: teacher_of(domain).model.state_dict() for domain in ("old", "lately", "never judged")}
    own = {name: tensor.equal(draft.state_dict()[name]) for name, tensor in weights["old"].items()}
    assert all(own.values())
    adapted = {
        domain for domain, of in weights.items() if any(not of[name].equal(weights["old"][name]) for name in own)
    }
    assert adapted == {"lately", "never judged"}
