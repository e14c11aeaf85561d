"""What becomes of a version by what a server serves with it."""

import pytest
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.store.adapter_version import CHAMPION, ROLLED_BACK
from hotdraft.pipeline.watch.trial import Trials
from tests.unit.serving.updates.watching.servers import promote, watch_tags


def test_a_real_fall_rolls_back(one, registry):
    one.serve(0.1, 40, seconds=3600)  # began on version 1: not its successor's fault
    one.watch.turn()
    assert registry.champion() == 2
    one.serve(0.2, 20)
    one.watch.turn()
    assert registry.champion() == 1
    found = registry.version(2)
    assert found.status == ROLLED_BACK
    assert "served acceptance fell from 0." in found.tags["reason"]
    one.follow()
    one.serve(0.1, 60)
    one.watch.turn()
    assert registry.champion() == 1, "a version that was returned to is not tried"


def test_what_a_version_served_that_is_not_told_of_yet_is_not_the_old_ones(server, registry):
    """Over vLLM workers commit a version before the server hears of it."""
    one = server("one")
    one.serve(0.6, 30)
    one.version = 2
    one.serve(0.1, 30)
    assert one.watch._current.requests == 30


def test_a_version_that_a_person_promoted_stays_though_it_falls_and_says_so(server, registry, client, caplog):
    one, two = server("one"), server("two")
    one.serve(0.6, 30)
    two.serve(0.6, 30)
    registry.tell(2, {"reason": "gain 0.1"})
    registry.promote(2, reason="", by_hand=True)
    for each in (one, two):
        each.follow()
        each.watch.turn()
        each.serve(0.2, 20)
    for each in (one, two):
        each.watch.turn()
        each.watch.turn()
    found = registry.version(2)
    assert (found.status, found.pinned, found.tags["reason"]) == (CHAMPION, True, "gain 0.1")
    assert found.tags["watchdog"].startswith("served acceptance fell from 0.")
    assert found.tags["watchdog"].endswith("; pinned by hand, so it stays")
    assert [record.levelname for record in caplog.records if "so it stays" in record.message] == ["WARNING"]
    assert watch_tags(client, 2) == {}


def test_a_server_that_starts_on_a_version_long_trusted_tries_nothing(server, registry, client):
    one = server("one")
    one.watch.turn()
    one.serve(0.2, 30)
    one.watch.turn()
    assert watch_tags(client, 1) == {}


def test_requests_that_are_not_recorded_tell_nothing(server, registry):
    one = server("one")
    one.serve(0.5, 30)
    one.serve(0.95, 30, client="c", record=False)
    promote(registry, 2, one)
    one.serve(0.5, 20, seed=1)
    one.serve(0.0, 60, record=False)
    one.watch.turn()
    assert registry.champion() == 2


def test_easy_requests_in_the_domain_of_others_undo_nothing(server, registry):
    one = server("one")
    for number in range(3):
        one.serve(0.4, 10, client=f"victim {number}", seed=number)
    one.serve(0.95, 30, client="outsider")
    promote(registry, 2, one)
    for number in range(3):
        one.serve(0.4, 20, client=f"victim {number}", seed=9 + number)
    one.serve(0.05, 60, client="outsider")
    one.watch.turn()
    assert registry.champion() == 2


def test_a_store_that_is_away_is_waited_for(server, registry, monkeypatch):
    one = server("one")
    one.serve(0.6, 30)
    registry.promote(2, reason="better")
    one.follow()
    with monkeypatch.context() as outage:
        outage.setattr(Trials, "_tags", lambda *_: (_ for _ in ()).throw(MlflowException("no route")))
        with pytest.raises(MlflowException, match="no route"):
            one.watch.turn()
        one.serve(0.2, 20)
    one.watch.turn()
    assert registry.champion() == 1


@pytest.mark.parametrize("follows", [True, False])
def test_evidence_that_could_not_be_taken_back_is_at_a_later_turn(one, registry, client, monkeypatch, follows):
    one.serve(0.6, 5)
    one.watch.turn()
    if follows:
        registry.promote(3, reason="better")
        one.follow()
    else:
        one.serve(0.6, 60)
    with monkeypatch.context() as outage:
        outage.setattr(Trials, "_delete", lambda *_: (_ for _ in ()).throw(MlflowException("no route")))
        for _ in range(2):
            with pytest.raises(MlflowException, match="no route"):
                one.watch.turn()
    one.watch.turn()
    assert watch_tags(client, 2).keys() == {"watch/state"}
    if follows:
        assert "watch/one/before" in watch_tags(client, 3), "of the version that serves it was told meanwhile"


def test_evidence_of_a_trial_before_does_not_go_once_the_version_is_tried_again(one, registry, client, monkeypatch):
    registry.promote(3, reason="better")
    with monkeypatch.context() as outage:
        outage.setattr(Trials, "_delete", lambda *_: (_ for _ in ()).throw(MlflowException("no route")))
        for version in (3, 1, 2):
            registry.promote(version, reason="better")
            one.follow()
            with pytest.raises(MlflowException, match="no route"):
                one.watch.turn()
    one.serve(0.6, 5)
    one.watch.turn()
    assert watch_tags(client, 2).keys() == {"watch/state", "watch/one/before", "watch/one/after"}
    assert watch_tags(client, 3).keys() == {"watch/state"}


def test_a_version_rolled_back_is_tried_anew_when_someone_promotes_it_again(one, registry):
    one.serve(0.2, 20)
    one.watch.turn()
    one.follow()
    one.serve(0.6, 30, seed=1)
    promote(registry, 2, one)
    one.serve(0.6, 9, seed=2)
    one.watch.turn()
    assert registry.champion() == 2, "what it did the first time is forgotten"
    one.serve(0.2, 30)
    one.watch.turn()
    assert registry.champion() == 1
