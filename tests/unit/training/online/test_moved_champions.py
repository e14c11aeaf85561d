"""What becomes of a job where the champion is lost, or moved while it trained or was published."""

import shutil
from dataclasses import replace

import pytest

from hotdraft.pipeline.loop.jobs import JobRecords
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.pipeline.store.connection import StoreError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.judging.evidence import VersionScores
from hotdraft.training.judging.gate import judge
from hotdraft.training.judging.resident import Resident
from hotdraft.training.online.job import run_job
from hotdraft.training.online.publish import Judged
from tests.unit.training.conftest import served_samples, tiny_llama
from tests.unit.training.online.jobs import Meanwhile, job_config, with_distill

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, empty_mlflow_db):
    """A registry in which version 2 serves, and 1 did before; beside its run directory lies a copy of that."""
    folder, target = tmp_path_factory.mktemp("trained"), tiny_llama(1, layers=1, scale=0.3)
    config = job_config(folder, target, empty_mlflow_db)
    buffer, registry = ReplayBuffer(config.replay_url), AdapterRegistry(config)
    buffer.append(served_samples(target, 40))
    for seed in (1, 2):
        result = run_job(with_distill(config, seed=seed), buffer=buffer, registry=registry)
        if registry.champion() != result.version:
            registry.promote(result.version, reason="by hand")
    shutil.copytree(config.run_dir, folder / "copy")
    return config


@pytest.fixture
def config(trained):
    shutil.rmtree(trained.run_dir)
    shutil.copytree(trained.run_dir.with_name("copy"), trained.run_dir)
    return trained


@pytest.fixture
def buffer(config):
    return ReplayBuffer(config.replay_url)


@pytest.fixture
def two_versions(config):
    return AdapterRegistry(config)


@pytest.mark.parametrize("lose", [lambda file: file.write_bytes(b""), lambda file: shutil.rmtree(file.parent)])
def test_a_champion_whose_files_are_spoiled_or_lost_is_judged_by_what_stands_in_for_it_and_not_by_the_draft(
    config, buffer, two_versions, lose
):
    samples = [sample_from_row(row) for row in buffer.load().with_format("numpy")][:8]
    draft = Resident().draft(config.draft, config)

    def scores(version):
        return VersionScores(draft, two_versions, config.distill, samples).of_champion(version).tolist()

    lose(two_versions.download(2) / "adapter_model.safetensors")
    assert scores(2) == scores(1) != scores(0)
    assert run_job(config, buffer=buffer, registry=two_versions).version == 3, "and jobs go on"


@pytest.mark.parametrize(("asked", "judgements"), [(20, 1), (45, 2)])
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
    one_candidate = with_distill(config, blends=[1.0])
    result = run_job(one_candidate, buffer=buffer, registry=two_versions, stop=stop)
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
    before = Judged.load(config.run_dir / "jobs" / JobRecords(config.run_dir).unfinished().work.id)
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


def _without_scores(evidence):
    (evidence / "scores.json").unlink()


def _with_half_the_scores(evidence):
    content = (evidence / "scores.json").read_bytes()
    (evidence / "scores.json").write_bytes(content[: len(content) // 2])


def _without_requests(evidence):
    for shard in evidence.glob("shard-*"):
        shard.unlink()


@pytest.mark.parametrize("lose", [shutil.rmtree, _without_scores, _with_half_the_scores, _without_requests])
def test_a_verdict_that_rests_on_what_is_lost_is_reached_again(config, buffer, two_versions, store, lose):
    """It is to be judged again, as the champion moved, and that is no fault of the store."""
    store.goes_away("log_artifacts")
    with pytest.raises(StoreError):
        run_job(config, buffer=buffer, registry=two_versions)
    store.is_back()
    was = JobRecords(config.run_dir).unfinished()
    two_versions.rollback(reason="fell", version=2)
    lose(config.run_dir / "jobs" / was.work.id / "evidence")
    result = run_job(config, buffer=buffer, registry=two_versions)
    assert result.run_id == was.run_id
    assert result.verdict.requests > 4
    assert two_versions.version(result.version).tags["judged_against"] == "1"
