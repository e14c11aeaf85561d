"""What is published, by which verdict, and once: a champion that moved has the candidate judged again."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.adapter_version import CANDIDATE, REJECTED
from hotdraft.pipeline.store.errors import ChampionMovedError
from hotdraft.training.judging.gate import refused
from hotdraft.training.online import offer as module
from hotdraft.training.online.offer import offer
from hotdraft.training.online.publish import Judged, Published

JUDGED = Judged(refused("", 8), {"blend": 0.75}, {}, Path("adapter"), 0.0, champion=2)


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """Offers the verdict against version 2; gives against which it was published, and each judgement."""
    registry = SimpleNamespace(status=None, serves=2, moves=[], champion=lambda: registry.serves)
    registry.published_by = lambda run_id: registry.status and SimpleNamespace(status=registry.status)
    judgements = []

    def contest(judged, evidence, scores, folder, registry, config, blends):
        judgements.append(blends)
        return replace(judged, champion=registry.champion())

    def publish(judged, run_id, config, registry):
        assert Judged.load(tmp_path).champion == judged.champion, "it is on disk before it counts"
        if registry.moves:
            registry.serves = registry.moves.pop(0)
            raise ChampionMovedError("it moved")
        return Published(judged, 3, promoted=True)

    monkeypatch.setattr(module, "contest", contest)
    monkeypatch.setattr(module, "publish", publish)
    monkeypatch.setattr(module, "VersionScores", lambda *_: None)
    monkeypatch.setattr(module, "load_draft", lambda *_: None)
    config, evidence = HotdraftConfig(target="t", draft="d"), SimpleNamespace(samples=[])
    JUDGED.save(tmp_path)

    def now(judged=JUDGED, **changes):
        judgements.clear()
        vars(registry).update(changes)
        return offer(judged, evidence, "run", tmp_path, config, registry).judged.champion, judgements

    return now


def test_a_verdict_against_the_champion_that_serves_is_published_as_it_is(offered):
    assert offered() == (2, [])


@pytest.mark.parametrize(("status", "blends"), [(None, None), (CANDIDATE, [0.75])])
def test_against_another_any_candidate_may_be_the_best_until_one_is_published(offered, status, blends):
    assert offered(status=status, serves=1) == (1, [blends])


def test_what_was_decided_is_not_judged_again(offered):
    assert offered(status=REJECTED, serves=1) == (2, [])


def test_where_there_was_nothing_fit_to_publish_nothing_is_judged_again(offered):
    assert offered(replace(JUDGED, folder=None), serves=1) == (2, [])


def test_as_often_as_the_champion_moves_while_it_is_published_it_is_judged_again(offered):
    assert offered(moves=[1, 0, 5]) == (5, [None, None, None])
