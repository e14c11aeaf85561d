"""A store that is away or hangs: points wait, counting does not."""

import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from hotdraft.pipeline.config.settings import TrackingConfig
from hotdraft.pipeline.store import tracking
from hotdraft.pipeline.store.connection import in_one_line
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.store.tracking import ServingTracker
from tests.unit.pipeline.store.fake_client import every, wait_until


@pytest.mark.parametrize("failure", [MlflowException("away"), KeyError("of another program's answer")], ids=str)
def test_an_outage_delays_points_and_loses_none(fake, config, caplog, failure):
    caplog.set_level("INFO")
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    tracker.curves.count(requests=1, rounds=1, drafted=2, accepted=1, tokens=2)
    wait_until(lambda: fake.metrics)
    fake.failure, fake.down = failure, True
    for _ in range(5):
        tracker.curves.count(requests=1, rounds=1, drafted=2, accepted=1, tokens=2)
        time.sleep(0.05)
    attempts = fake.attempts
    assert len(fake.values("requests")) == 1
    fake.down = False
    wait_until(lambda: max(fake.values("requests")) == 6)
    tracker.stop()
    assert attempts >= 3
    assert tracker.curves.dropped == 0
    assert fake.values("requests") == sorted(fake.values("requests"))
    stamps = [metric.timestamp for metric in fake.metrics]
    assert max(stamps) - min(stamps) >= 150, "points keep the time at which they were made"
    assert [record.message.split(",")[0] for record in caplog.records if "be used" in record.message] == [
        "MLflow cannot be used",
        "MLflow can be used again",
    ]


def test_a_store_that_is_away_from_the_start_is_found_later(fake, config):
    fake.down = True
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    tracker.curves.count(requests=1, rounds=1, drafted=2, accepted=1, tokens=2)
    wait_until(lambda: fake.attempts >= 2)
    assert tracker.run_id is None
    fake.down = False
    wait_until(lambda: fake.values("requests") == [1])
    tracker.stop()


def test_a_store_that_stays_away_is_asked_ever_more_rarely_but_once_a_minute(fake, config, monkeypatch):
    clock, asked, reach = [1000.0], set(), fake._reach
    monkeypatch.setattr(tracking, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    monkeypatch.setattr(fake, "_reach", lambda: (asked.add(clock[0]), reach()))
    tracker = ServingTracker(every(config, 5), connect=fake.connect)

    def waited(seconds: float) -> list[float]:
        """Between two times that it was asked within so long, before the last time, when the server ends."""
        asked.clear()
        end = clock[0] + seconds

        def wait(interval: float) -> bool:
            clock[0] += interval
            return clock[0] > end

        monkeypatch.setattr(tracker, "_stopping", SimpleNamespace(wait=wait))
        tracker._work()
        return [later - one for one, later in pairwise(sorted(asked)[:-1])]

    fake.down = True
    tracker.curves.mark_swap(3, reason="promotion")
    assert waited(300) == [5, 10, 20, 40, 60, 60, 60]
    fake.down = False
    waited(100)
    assert tracker.curves.unsent == 0
    fake.down = True
    tracker.curves.mark_swap(4, reason="promotion")
    assert waited(20) == [5, 10], "as at first"


class Foreign(BaseHTTPRequestHandler):
    """Answers anything with an empty object."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        self.do_GET()


@pytest.fixture
def foreign_uri() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_another_program_at_the_address_is_told_of_once_and_takes_no_points(config, foreign_uri, caplog):
    tracking = TrackingConfig(uri=foreign_uri, interval_seconds=0.02)
    tracker = ServingTracker(config.model_copy(update={"tracking": tracking}))
    tracker.curves.count(requests=1, rounds=1, drafted=2, accepted=1, tokens=2)
    tracker.curves.end_interval()
    tracker.start()
    wait_until(lambda: caplog.records)
    tracker.stop()
    assert tracker.curves.unsent == 1
    assert [record.message for record in caplog.records] == [
        "MLflow cannot be used, points of the curves wait: what answers there is no MLflow server"
    ]


def test_another_program_at_the_address_is_no_registry_without_a_champion(config, foreign_uri):
    config = config.model_copy(update={"tracking": TrackingConfig(uri=foreign_uri)})
    with pytest.raises(MlflowException, match="what answers there is no MLflow server"):
        AdapterRegistry(config).champion()


def test_unsent_points_are_bounded_and_losses_counted_and_told_once(fake, config, caplog):
    fake.down = True
    tracker = ServingTracker(every(config, 60), connect=fake.connect, max_unsent_points=10)
    for version in range(1, 31):
        tracker.curves.mark_swap(version, reason="test")
    assert (tracker.curves.unsent, tracker.curves.dropped) == (10, 20)
    fake.down = False
    tracker.start()
    tracker.stop()
    assert fake.values("draft_version")[-1] == 30
    assert len(fake.values("draft_version")) == 20  # two values a swap
    assert sum("dropped" in record.message for record in caplog.records) == 1


def test_counting_does_not_wait_for_a_store_that_hangs(fake, config):
    free = threading.Event()
    sending = threading.Event()

    def hang(run_id, metrics=(), params=()):
        sending.set()
        free.wait(10)

    fake.log_batch = hang
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    tracker.curves.count(rounds=1, drafted=1, tokens=1)
    assert sending.wait(5)
    started = time.perf_counter()
    for _ in range(1000):
        tracker.curves.count(domain="math", rounds=1, drafted=3, accepted=1, tokens=2)
    tracker.curves.mark_swap(1, reason="test")
    tracker.stop(patience=0.1)
    assert time.perf_counter() - started < 2
    free.set()


def test_a_store_that_hangs_makes_no_point_late(fake, config):
    free = threading.Event()
    real = fake.log_batch

    def hang(run_id, metrics=(), params=()):
        free.wait(10)
        real(run_id, metrics, params)

    fake.log_batch = hang
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    for _ in range(4):
        tracker.curves.count(requests=1, rounds=1, drafted=1, tokens=1)
        time.sleep(0.1)
    released = time.time()
    free.set()
    tracker.stop()
    assert fake.values("requests") == [1, 2, 3, 4]
    assert all(metric.timestamp / 1000 < released - 0.02 for metric in fake.metrics)


def test_what_was_served_during_an_outage_is_told_after_it(fake, config):
    told: dict[str, str] = {}
    version = type("Version", (), {"tags": told, "run_id": None})
    fake.get_model_version = lambda name, number: version
    fake.set_model_version_tag = lambda name, number, key, value: told.update({key: value})
    fake.update_model_version = lambda name, number, description: told.update(description=description)
    fake.down = True
    tracker = ServingTracker(config, connect=fake.connect)
    tracker.start()
    tracker.curves.mark_swap(3, reason="promotion")
    for _ in range(5):
        tracker.curves.served(3, domain="sql", drafted=10, examined=8, accepted=6)
    wait_until(lambda: fake.attempts >= 2)
    assert not told
    fake.down = False
    tracker.stop()
    assert told["served_requests"] == "5"
    assert told["served_acceptance_rate"] == "0.6"


def test_a_store_whose_file_is_gone_is_away_and_one_put_in_its_place_is_taken_up(publisher, tmp_path):
    registry, path, backup = publisher.registry, publisher.config.run_dir / "mlflow.db", tmp_path / "backup.db"
    first, second = publisher.publish(), publisher.publish()
    registry.promote(first, reason="test", by_hand=True)
    shutil.copy(path, backup)
    registry.promote(second, reason="test", by_hand=True)
    path.unlink()
    with pytest.raises(MlflowException) as caught:
        registry.champion()
    assert str(path) in in_one_line(caught.value)
    assert not path.exists(), "to look makes none"
    with pytest.raises(MlflowException, match=r"is gone, to which .*mlartifacts belongs: put it back"):
        AdapterRegistry(publisher.config).champion()
    assert not path.exists(), "a new one would be filled, and no version serve"
    path.touch()
    with pytest.raises(MlflowException, match=r"is empty, to which .*mlartifacts belongs: put it back"):
        AdapterRegistry(publisher.config).champion()
    assert not path.stat().st_size, "nor is an empty one, as the end of power may leave, made a new one"
    backup.rename(path)
    assert registry.champion() == first
    registry.unpin()
    assert not AdapterRegistry(publisher.config).is_pinned(), "what is written is in the file that is there"
