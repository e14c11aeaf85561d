"""Servers that try one version together, by what they tell each other in the registry."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST, TEMPORARILY_UNAVAILABLE

from hotdraft.pipeline.store.adapter_version import CHAMPION
from hotdraft.pipeline.store.connection import exclusive
from hotdraft.pipeline.store.lock import StoreLockError
from hotdraft.pipeline.watch import trial
from hotdraft.serving.messages.events import SwapEvent
from hotdraft.serving.updates.acceptance_watch import MAX_ENTRIES
from tests.unit.serving.updates.watching.servers import promote, watch_tags


def test_a_better_version_stays_and_the_trial_leaves_one_tag(server, registry, client):
    one = server("one")
    one.serve(0.5, 30)
    promote(registry, 2, one)
    assert watch_tags(client, 2).keys() == {"watch/state", "watch/one/before"}
    one.serve(0.7, 60)
    one.watch.turn()
    assert registry.champion() == 2
    assert watch_tags(client, 2).keys() == {"watch/state"}
    one.serve(0.1, 60)
    one.watch.turn()
    assert registry.champion() == 2, "traffic that grows harder later is not its fault"


def test_a_version_that_another_follows_before_its_trial_is_over_keeps_one_tag(server, registry, client):
    one, two = server("one"), server("two")
    for each in (one, two):
        each.serve(0.5, 30)
    promote(registry, 2, one, two)
    one.serve(0.5, 4)
    one.watch.turn()
    assert len(watch_tags(client, 2)) == 4
    promote(registry, 3, one, two)
    assert watch_tags(client, 2).keys() == {"watch/state"}
    assert {"watch/state", "watch/one/before"} <= watch_tags(client, 3).keys()


def test_the_verdict_comes_of_what_all_servers_served_and_once(server, registry, client):
    one, two, three = servers = [server(name) for name in ("one", "two", "three")]
    registry.promote(2, reason="better")
    for each in servers:
        each.follow()
        each.serve(0.6, 12)
    promote(registry, 3, *servers)
    for number, each in enumerate((one, two)):
        each.serve(0.2, 4, seed=number)
        each.watch.turn()
        assert registry.champion() == 3, "too few requests"
    three.serve(0.2, 4, seed=2)
    three.watch.turn()
    assert registry.champion() == 2
    assert "over 12 requests" in registry.version(3).tags["reason"]
    for each in (one, two):
        each.serve(0.2, 30)
        each.watch.turn()
    assert registry.champion() == 2, "nobody rolls back what was rolled back"
    assert watch_tags(client, 3) == {}


def test_looks_are_the_planned_ones_however_many_servers_look(server, registry, client):
    servers = [server(f"s{number}") for number in range(6)]
    for number, each in enumerate(servers):
        each.serve(0.5, 10, seed=number)
    promote(registry, 2, *servers)
    done = []
    for number, each in enumerate(servers):
        each.serve(0.5, 5, seed=10 + number)
        for other in servers:
            other.watch.turn()
        done.append(watch_tags(client, 2)["watch/state"].split('"looks": ')[1][0])
    assert done == ["0", "1", "2", "2", "3", "3"]


def test_who_waited_for_the_lock_goes_by_what_others_told_meanwhile(server, registry, client, monkeypatch):
    one, two = server("one"), server("two")
    for each in (one, two):
        each.serve(0.5, 30)
    promote(registry, 2, one, two)
    one.serve(0.5, 12)

    def after_the_other(*lock):
        monkeypatch.undo()
        two.serve(0.5, 20)
        two.watch.turn()
        return exclusive(*lock)

    monkeypatch.setattr(trial, "exclusive", after_the_other)
    one.watch.turn()
    assert '"looks": 3' in watch_tags(client, 2)["watch/state"]


def test_who_lost_the_lock_changes_nothing_and_who_finds_nothing_new_asks_for_none(
    server, registry, client, monkeypatch
):
    one = server("one")
    one.serve(0.6, 30)
    lost = Mock(side_effect=StoreLockError("somebody else's"))
    with monkeypatch.context() as patched:
        patched.setattr(trial, "exclusive", lambda *_: nullcontext(lost))
        with pytest.raises(StoreLockError):
            promote(registry, 2, one)
        assert watch_tags(client, 2) == {}
    one.watch.turn()
    opened = watch_tags(client, 2)["watch/state"]
    monkeypatch.setattr(trial, "exclusive", lambda *_: nullcontext(lost))
    one.serve(0.6, 9)
    one.watch.turn()
    one.serve(0.6, 1)
    with pytest.raises(StoreLockError):
        one.watch.turn()
    assert watch_tags(client, 2)["watch/state"] == opened


def test_a_trial_does_not_wait_forever_for_requests_like_those_before(server, registry, client):
    one = server("one")
    one.serve(0.6, 30)
    promote(registry, 2, one)
    for requests, is_over in ((20 * 60, "false"), (1, "true")):
        one.serve(0.1, requests, domain="another")
        one.watch.turn()
        assert f'"over": {is_over}' in watch_tags(client, 2)["watch/state"]
    assert registry.champion() == 2


def test_a_server_that_starts_meanwhile_takes_part_in_the_trial(one, server, registry):
    two = server("two")
    two.watch.turn()
    two.serve(0.2, 20)
    two.watch.turn()
    assert registry.champion() == 1


def test_workers_that_come_back_to_the_version_on_trial_end_no_trial(one, registry):
    one.watch.on_swap(SwapEvent(2, 2, "promotion", 0.0))
    one.serve(0.2, 20)
    one.watch.turn()
    assert registry.champion() == 1


def test_a_server_that_knows_nothing_of_before_waits_for_one_that_does(server, registry, monkeypatch):
    one, two = server("one"), server("two")
    one.serve(0.6, 30)
    registry.promote(2, reason="gate")
    two.follow()
    two.watch.turn()
    one.follow()
    one.watch.turn()
    two.serve(0.2, 20)
    two.watch.turn()
    assert registry.champion() == 1


def test_tags_of_somebody_else_stop_nothing(one, registry, client):
    for key in ("watch/x/before", "watch/x/after", "watch/odd"):
        client.set_model_version_tag("hotdraft-draft", "2", key, "an odd thing")
    one.serve(0.2, 20)
    one.watch.turn()
    assert registry.champion() == 1


@pytest.mark.parametrize("looks", ["Infinity", "null", '"many"', "[]"])
def test_a_trial_of_which_nobody_can_read_how_it_stands_is_opened_anew(server, registry, client, looks):
    one = server("one")
    one.serve(0.6, 30)
    state = f'{{"opened": 1.0, "against": "1", "looks": {looks}, "over": false}}'
    client.set_model_version_tag("hotdraft-draft", "2", "watch/state", state)
    promote(registry, 2, one)
    one.serve(0.2, 20)
    one.watch.turn()
    assert registry.champion() == 1


def test_a_version_that_was_deleted_ends_its_trial(one, registry, client):
    client.delete_model_version("hotdraft-draft", "2")
    one.serve(0.2, 20)
    one.watch.turn()
    assert registry.champion() == 0


def test_what_is_gone_need_not_be_taken_back_but_what_a_store_that_is_away_may_hold(config, monkeypatch):
    trials, fails = trial.Trials(config, "one"), Mock()
    monkeypatch.setattr(trials._client, "delete_model_version_tag", fails)
    fails.side_effect = MlflowException("no such version", RESOURCE_DOES_NOT_EXIST)
    trials.leave(2)
    fails.side_effect = MlflowException("away", TEMPORARILY_UNAVAILABLE)
    with pytest.raises(MlflowException, match="away"):
        trials.leave(2)


def test_no_client_stands_in_the_registry(server, registry, client):
    one = server("one")
    for name in ("sk-secret", "203.0.113.9"):
        one.serve(0.5, 5, client=name, domain="acme")
    promote(registry, 2, one)
    one.serve(0.5, 5, client="sk-secret", domain="acme")
    one.watch.turn()
    kept = str(watch_tags(client, 2))
    assert kept.count("[5, ") == 3
    assert not any(secret in kept for secret in ("sk-secret", "203.0.113", "acme"))


def test_a_client_that_makes_up_domains_displaces_its_own(server, registry, client):
    one = server("one")
    one.serve(0.6, 30, client="victim")
    for number in range(2 * MAX_ENTRIES):
        one.serve(0.6, 1, client="flood", domain=f"d{number}")
        one.serve(0.6, 1, client=f"c{number % 50}")
    window = one.watch._current
    assert sum(len(kinds) for kinds in window._clients.values()) == window._size == MAX_ENTRIES
    assert window.recent(1) != {}
    assert len(window._clients) == 52
    promote(registry, 2, one)
    one.serve(0.2, 30, client="victim")
    for number in range(3):
        one.serve(0.2, 10, client=f"c{number}", seed=number)
    one.watch.turn()
    assert registry.version(1).status == CHAMPION
