"""The same thread where the store is away, keeps files back, or takes no word."""

import time
from pathlib import Path

from mlflow.exceptions import MlflowException

from hotdraft.serving.updates import champion
from hotdraft.serving.updates.last_served import LastServed
from tests.unit.serving.updates.followed import BROKEN, count, eventually


def test_a_store_that_is_down_changes_nothing_until_it_is_back(engine, sync, registry, caplog):
    caplog.set_level("INFO")
    registry.promote(1)
    sync.start()
    registry.down = True
    registry.champions.append(2)
    assert eventually(lambda: "version 1 serves on" in caplog.text)
    time.sleep(0.1)
    assert engine.draft_version == 1
    assert sync.problem
    assert caplog.text.count("registry cannot be used") == 1, "said once, not every second"
    registry.down = False
    assert eventually(lambda: engine.draft_version == 2)
    assert eventually(lambda: caplog.text.count("registry can be used again") == 1)
    assert sync.problem is None


def test_a_version_whose_files_are_kept_back_waits_for_them(engine, sync, registry, caplog, monkeypatch):
    monkeypatch.setattr(champion, "LONGEST_RETRY_SECONDS", 0.02)
    registry.promote(1)
    sync.start()
    registry.keeps_files_back = True
    registry.promote(2)
    assert eventually(lambda: "version 1 serves on: StoreError: s3://" in caplog.text)
    assert "secret" not in caplog.text
    assert not registry.rolled_back
    assert eventually(lambda: sync.unusable == {2: "its files cannot be had"})
    registry.keeps_files_back = False
    assert eventually(lambda: engine.draft_version == 2)


def test_a_store_that_is_down_at_the_start_does_not_stop_serving(engine, sync, registry):
    registry.promote(1)
    registry.down = True
    sync.start()
    assert engine.draft_version == 0
    registry.down = False
    assert eventually(lambda: engine.draft_version == 1)


def test_what_served_last_serves_until_the_store_is_back(engine, sync, registry, last_served, metrics, caplog):
    registry.promote(1)
    registry.promote(2)
    last_served.write(1, Path("/adapters/1"))
    registry.down = True
    sync.start()
    assert engine.draft_version == 1, "before the first request"
    assert eventually(lambda: count(metrics, "hotdraft_swaps_total", reason="startup") == 1)
    assert "taking up version 1, which served last" in caplog.text
    registry.down = False
    assert eventually(lambda: engine.draft_version == 2)
    assert eventually(lambda: last_served.read() == LastServed(version=2, folder=Path("/adapters/2")))


def test_what_served_last_passes_the_checks_of_any_swap(
    engine, sync, registry, swapper, last_served, metrics, caplog
):
    swapper.broken = {1: BROKEN}
    last_served.write(1, Path("/adapters/1"))
    registry.down = True
    sync.start()
    assert engine.draft_version == 0
    assert count(metrics, "hotdraft_swap_failures_total") == 1
    assert "not finite" in caplog.text
    registry.down = False
    registry.promote(2)
    assert eventually(lambda: engine.draft_version == 2)


def test_a_version_taken_back_while_the_server_was_off_is_not_what_served_last(engine, sync, registry, last_served):
    last_served.write(1, Path("/adapters/1"))
    sync.start()
    assert engine.draft_version == 0
    assert last_served.read() is None
    registry.promote(2)
    assert eventually(lambda: last_served.read() is not None)
    registry.rollback(reason="by hand")
    assert eventually(lambda: engine.draft_version == 0 and last_served.read() is None)


def test_a_store_that_can_be_read_and_not_told_keeps_no_champion_from_being_followed(engine, sync, registry, watch):
    watch.turn.side_effect = MlflowException("no tag may be written")
    sync.start()
    registry.promote(1)
    assert eventually(lambda: engine.draft_version == 1)
    assert eventually(lambda: sync.errors >= 1)
