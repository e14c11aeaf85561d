"""Servers that watch one version together, over a real registry; what they serve is made up."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.config.learning import WatchdogConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.store.adapter_version import CHAMPION, ROLLED_BACK
from hotdraft.pipeline.store.connection import experiment_id, open_client
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.watch.trial import Trials
from hotdraft.serving.messages.events import SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, RequestStats, SamplingParams
from hotdraft.serving.updates.acceptance_watch import MAX_ENTRIES, AcceptanceWatch


@pytest.fixture
def config(empty_mlflow_db: Path, tmp_path: Path) -> HotdraftConfig:
    (tmp_path / "run").mkdir()
    shutil.copy(empty_mlflow_db, tmp_path / "run" / "mlflow.db")
    watchdog = WatchdogConfig(min_requests=10, max_requests=60)
    return HotdraftConfig(target="tiny", run_dir=tmp_path / "run", watchdog=watchdog)


@pytest.fixture
def client(config: HotdraftConfig) -> MlflowClient:
    return open_client(config)


@pytest.fixture
def registry(config: HotdraftConfig, client: MlflowClient, tmp_path: Path) -> AdapterRegistry:
    """With versions 1, 2 and 3, of which 1 serves."""
    run = client.create_run(experiment_id(client, config, "training")).info.run_id
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "weights").write_text("")
    registry = AdapterRegistry(config)
    for _ in range(3):
        registry.publish(folder, run_id=run, tags={})
    registry.promote(1, reason="first")
    return registry


class Server:
    """Its watch, and what the rest of a server does to it."""

    def __init__(self, name: str, config: HotdraftConfig, registry: AdapterRegistry) -> None:
        self.watch = AcceptanceWatch(Trials(config, name), registry)
        self.registry = registry
        self.version = 0
        self.follow()

    def follow(self) -> None:
        before, self.version = self.version, self.registry.champion()
        if before != self.version:
            self.watch.on_swap(SwapEvent(self.version, before, "promotion", 0.0))

    def serve(
        self, rate: float, requests: int, *, client: str = "c", domain: str = "d", record: bool = True,
        seconds: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        """Requests that finish now with about `rate` of 100 first tokens accepted, and others as ever."""
        for accepted in np.random.default_rng(seed).normal(100 * rate, 15, requests).clip(0, 100):
            stats = RequestStats(9, 9, 100, 200, 150, 90, 100, int(accepted), 0, 0, self.version, 0.0, 0.0, seconds)
            request = GenerationRequest("r", (1,), SamplingParams(), domain, record, client)
            self.watch.on_finish(request, stats, "length")


@pytest.fixture
def server(config: HotdraftConfig, registry: AdapterRegistry) -> Callable[[str], Server]:
    return lambda name: Server(name, config, registry)


def watch_tags(client: MlflowClient, version: int) -> dict[str, str]:
    tags = client.get_model_version("hotdraft-draft", str(version)).tags
    return {key: value for key, value in tags.items() if key.startswith("watch/")}


def promote(registry: AdapterRegistry, version: int, *servers: Server) -> None:
    registry.promote(version, reason="better")
    for server in servers:
        server.follow()
        server.watch.turn()


def test_a_real_fall_rolls_back(server, registry):
    one = server("one")
    one.serve(0.6, 30)
    promote(registry, 2, one)
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


def test_a_server_that_starts_meanwhile_takes_part_in_the_trial(server, registry):
    one = server("one")
    one.serve(0.6, 30)
    promote(registry, 2, one)
    two = server("two")
    two.watch.turn()
    two.serve(0.2, 20)
    two.watch.turn()
    assert registry.champion() == 1


def test_workers_that_come_back_to_the_version_on_trial_end_no_trial(server, registry):
    one = server("one")
    one.serve(0.6, 30)
    promote(registry, 2, one)
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


def test_a_version_rolled_back_is_tried_anew_when_someone_promotes_it_again(server, registry):
    one = server("one")
    one.serve(0.6, 30)
    promote(registry, 2, one)
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


def test_tags_of_somebody_else_stop_nothing(server, registry, client):
    one = server("one")
    one.serve(0.6, 30)
    promote(registry, 2, one)
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


def test_a_version_that_was_deleted_ends_its_trial(server, registry, client):
    one = server("one")
    one.serve(0.6, 30)
    promote(registry, 2, one)
    client.delete_model_version("hotdraft-draft", "2")
    one.serve(0.2, 20)
    one.watch.turn()
    assert registry.champion() == 0


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
