"""The thread that follows the champion: what serves, what cannot, and what is counted."""

import time
from pathlib import Path

import pytest
import torch

from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.serving.updates import adapter_sync, champion
from hotdraft.serving.updates.hot_swap import StagedDraft
from hotdraft.serving.updates.last_served import LastServed
from hotdraft.serving.updates.swapper import NotNowError
from tests.unit.serving.updates.followed import BROKEN, Swapper, count, eventually


def test_the_champion_serves_from_the_start_and_is_followed(engine, sync, registry, metrics):
    registry.promote(1)
    sync.start()
    assert engine.draft_version == 1, "before the first request"
    assert eventually(lambda: count(metrics, "hotdraft_swaps_total", reason="startup") == 1)
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)
    assert eventually(lambda: count(metrics, "hotdraft_swaps_total", reason="promotion") == 1)
    registry.rollback(reason="by hand")
    assert eventually(lambda: engine.draft_version == 1)
    assert eventually(lambda: count(metrics, "hotdraft_swaps_total", reason="rollback") == 1)


def test_a_version_that_does_not_fit_is_unusable_here_and_the_alias_stays(
    engine, sync, registry, swapper, metrics, caplog
):
    swapper.broken = {2: BROKEN}
    registry.promote(1)
    sync.start()
    registry.promote(2)
    assert eventually(lambda: count(metrics, "hotdraft_adapter_unusable", version="2") == 1)
    time.sleep(0.1)
    assert engine.draft_version == 1
    assert registry.champion() == 2
    assert not registry.rolled_back
    assert sync.unusable == {2: str(BROKEN)}
    assert swapper.staged.count(2) == count(metrics, "hotdraft_swap_failures_total") == 1, "it stays what it is"
    assert caplog.text.count("version 2 is unusable here, version 1 serves on") == 1
    registry.promote(3)
    assert eventually(lambda: engine.draft_version == 3)
    assert count(metrics, "hotdraft_adapter_unusable", version="2") is None


def test_one_server_that_fits_nothing_leaves_the_champions_of_the_others(engine, sync, registry, swapper):
    swapper.broken = dict.fromkeys(range(1, 4), AdapterError("adapter was trained on another base"))
    for version in (1, 2, 3):
        registry.promote(version)
    sync.start()
    time.sleep(0.2)
    assert registry.champions == [1, 2, 3]
    assert engine.draft_version == 0


def test_a_champion_that_comes_back_is_tried_again(engine, sync, registry, swapper):
    swapper.broken = {2: BROKEN}
    registry.promote(1)
    sync.start()
    registry.promote(2)
    assert eventually(lambda: sync.unusable.keys() == {2})
    registry.promote(1)
    assert eventually(lambda: not sync.unusable)
    swapper.broken = {}
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)


def test_a_version_is_tried_again_when_its_files_change(engine, sync, registry, swapper, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "download", lambda version: tmp_path)
    monkeypatch.setattr(swapper, "stage", lambda version, folder: stage(swapper, folder / "weights", version))
    registry.promote(1)
    sync.start()
    assert eventually(lambda: sync.unusable.keys() == {1})
    time.sleep(0.1)
    assert swapper.staged == [1]
    (tmp_path / "weights").touch()
    assert eventually(lambda: engine.draft_version == 1)
    assert swapper.staged == [1, 1]


def stage(swapper: Swapper, needed: Path, version: int) -> StagedDraft:
    swapper.staged.append(version)
    if not needed.exists():
        raise AdapterError("weights are missing")
    return StagedDraft(version, swapper._original.weights)


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("/a/path"), "RuntimeError"),
        (RegistryError("gone from /a/path"), "its files cannot be had"),
    ],
)
def test_what_may_pass_is_tried_again_after_a_while(engine, sync, registry, swapper, monkeypatch, cause, why):
    monkeypatch.setattr(champion, "LONGEST_RETRY_SECONDS", 0.02)
    swapper.broken = {2: cause}
    registry.promote(1)
    sync.start()
    registry.promote(2)
    assert eventually(lambda: swapper.staged.count(2) > 2)
    assert eventually(lambda: sync.unusable == {2: why})
    swapper.broken = {}
    assert eventually(lambda: engine.draft_version == 2)
    assert eventually(lambda: not sync.unusable)
    assert registry.champions == [1, 2]


def test_a_swap_that_has_to_wait_is_held_against_no_version(engine, sync, registry, swapper, metrics, caplog):
    swapper.broken = {1: NotNowError("vLLM sleeps")}
    registry.promote(1)
    for _ in range(2):
        sync._turn("promotion")
    assert (sync.waits, sync.unusable, sync.errors) == ("vLLM sleeps", {}, 0)
    assert count(metrics, "hotdraft_swap_failures_total") == 0
    assert caplog.text.count("a swap waits, version 0 serves on: vLLM sleeps") == 1
    swapper.broken = {}
    sync._turn("promotion")
    assert (sync.waits, engine.draft_version) == (None, 1)


def test_the_pauses_between_tries_grow(sync, registry, swapper, monkeypatch):
    now = 0.0
    monkeypatch.setattr(champion.time, "monotonic", lambda: now)
    swapper.broken = {1: MemoryError()}
    registry.promote(1)
    tried = []
    for second in range(2000):
        now = float(second)
        before = len(swapper.staged)
        sync._turn("promotion")
        if len(swapper.staged) > before:
            tried.append(second)
    assert tried[:5] == [0, 2, 6, 14, 30]
    assert tried[-1] - tried[-2] == 600


def test_a_server_that_starts_with_an_unusable_champion_serves_what_served_last(
    engine, sync, registry, swapper, last_served, caplog
):
    swapper.broken = {4: BROKEN}
    for version in (1, 2, 3, 4):
        registry.promote(version)
    last_served.write(2, Path("/adapters/2"))
    sync.start()
    assert engine.draft_version == 2, "before the first request"
    time.sleep(0.1)
    assert engine.draft_version == 2
    assert last_served.read() == LastServed(version=2, folder=Path("/adapters/2"))
    assert registry.champions == [1, 2, 3, 4]


def test_else_it_serves_the_newest_champion_that_it_can(engine, sync, registry, swapper, last_served):
    swapper.broken = {2: BROKEN, 3: MemoryError(), 4: BROKEN}
    for version in (1, 2, 3, 4):
        registry.promote(version)
    registry.rolled_back[9] = "it was worse"
    last_served.write(9, Path("/adapters/9"))
    sync.start()
    assert engine.draft_version == 1
    assert sync.unusable.keys() == {2, 3, 4}


def test_whatever_is_odd_in_the_registry_the_thread_goes_on(engine, sync, registry, metrics, caplog):
    registry.odd = KeyError("status")
    registry.promote(1)
    sync.start()
    assert engine.draft_version == 1
    assert eventually(lambda: count(metrics, "hotdraft_adapter_sync_errors_total") > 3)
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)
    assert caplog.text.count("adapter sync, which goes on: KeyError") == 1, "said once, not every second"


def test_refused_versions_are_counted_when_the_champion_changed_not_each_second(engine, sync, registry, metrics):
    registry.promote(1)
    registry.promote(2)
    sync.start()
    time.sleep(0.1)
    assert registry.asked_after == [0]
    registry.rollback(reason="by hand")
    assert eventually(lambda: count(metrics, "hotdraft_adapters_rejected_total") == 1)
    time.sleep(0.1)
    assert registry.asked_after == [0, 0]


def test_a_refused_version_that_a_person_promotes_was_refused_all_the_same(sync, registry, metrics):
    registry.promote(1)
    registry.rejected = {2, 3}
    sync.start()
    assert eventually(lambda: count(metrics, "hotdraft_adapters_rejected_total") == 2)
    registry.rejected = {3}
    registry.promote(2)
    assert eventually(lambda: registry.asked_after == [0, 0])
    assert count(metrics, "hotdraft_adapters_rejected_total") == 2, "a counter that fell would be a restart"


def test_a_refusal_is_counted_within_seconds_by_asking_for_newer_versions_alone(
    sync, registry, metrics, monkeypatch
):
    monkeypatch.setattr(adapter_sync, "NEWS_SECONDS", 0.01)
    registry.promote(2)
    registry.rejected = {1, 3}
    sync.start()
    assert count(metrics, "hotdraft_adapters_rejected_total") == 2
    registry.rejected.add(4)
    assert eventually(lambda: count(metrics, "hotdraft_adapters_rejected_total") == 3)
    assert registry.asked_after[:2] == [0, 3]
    assert 0 not in registry.asked_after[1:]


def test_a_watch_that_fails_does_not_stop_the_champion_from_being_followed(engine, sync, registry, watch):
    watch.turn.side_effect = RegistryError("an odd entry")
    sync.start()
    registry.promote(1)
    assert eventually(lambda: engine.draft_version == 1)
