import errno
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from hotdraft.pipeline.config.serving import RecorderConfig
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.store.domains import MAX_DOMAINS, OTHER
from hotdraft.pipeline.system.array_ring import ArrayRing
from hotdraft.serving.engine import recorder as recorder_module
from hotdraft.serving.engine.recorder import Recorder, ServedModels


class Store:
    """A replay buffer that is slow or broken when told."""

    def __init__(self) -> None:
        self.shards: list[list[str]] = []
        self.domains: list[str] = []
        self.models: list[tuple[str, str]] = []
        self.open = threading.Event()
        self.open.set()
        self.error: Exception | None = None
        self.is_full = False

    def append(self, samples: list[ReplaySample], make_room: Callable[[], None] | None) -> str:
        assert self.open.wait(30)
        if self.is_full:
            make_room()
        if self.error is not None:
            raise self.error
        self.shards.append([sample.request_id for sample in samples])
        self.domains += [sample.domain for sample in samples]
        self.models += [(sample.target_id, sample.draft_id) for sample in samples]
        return "shard"


class ClientError(Exception):
    """What an object store's client raises, neither OSError nor ValueError."""


def sample(name: str, domain: str = "d") -> ReplaySample:
    arrays = [np.zeros(1)] * 8
    return ReplaySample(name, 0.0, domain, 0.0, *arrays)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def store() -> Store:
    return Store()


def recorder(store: Store, **config: object) -> Recorder:
    return Recorder(store, RecorderConfig(**{"flush_seconds": 60.0, "shard_requests": 2, **config}))


def test_full_shards_are_written_at_once_and_the_tail_at_the_end(store):
    under_test = recorder(store)
    for n in range(5):
        under_test.record(sample(f"r{n}"))
    assert eventually(lambda: under_test.recorded == 4)
    under_test.close()
    assert store.shards == [["r0", "r1"], ["r2", "r3"], ["r4"]]
    assert (under_test.recorded, under_test.dropped) == (5, 0)


def test_an_unfinished_shard_is_written_when_it_is_old(store):
    under_test = recorder(store, flush_seconds=0.05)
    under_test.record(sample("r"))
    assert eventually(lambda: store.shards == [["r"]])
    under_test.close()


def test_each_sample_says_which_models_it_is_of(store):
    under_test = Recorder(store, RecorderConfig(), models=ServedModels("t", "d"))
    under_test.record(sample("r"))
    under_test.close()
    assert store.models == [("t", "d")]


def test_a_full_queue_drops_and_never_blocks(store):
    store.open.clear()
    under_test = recorder(store, queue_size=3, shard_requests=1)
    under_test.record(sample("first"))
    assert eventually(under_test._queue.empty)  # it is being written, for ever
    started = time.monotonic()
    for n in range(10):
        under_test.record(sample(f"r{n}"))
    assert time.monotonic() - started < 1
    assert under_test.dropped == 7
    store.open.set()
    under_test.close()
    assert store.shards == [["first"], ["r0", "r1", "r2"]], "who is behind writes what waits at once"
    assert under_test.recorded == 4


@pytest.mark.parametrize("error", [OSError("disk full"), ValueError("no such type"), ClientError("slow down")])
def test_what_cannot_be_written_is_counted_and_recording_goes_on(store, error):
    store.error = error
    under_test = recorder(store)
    under_test.record(sample("lost1"))
    under_test.record(sample("lost2"))
    assert eventually(lambda: under_test.dropped == 2)
    assert under_test.problem == f"{type(error).__name__}: {error}"
    store.error = None
    under_test.record(sample("kept"))
    under_test.close()
    assert store.shards == [["kept"]]
    assert (under_test.recorded, under_test.problem) == (1, None)


@pytest.mark.parametrize("queued", [1, 3], ids=["room in the queue", "a full queue"])
def test_a_store_that_never_answers_does_not_keep_the_server_from_ending(store, queued):
    store.open.clear()
    under_test = recorder(store, queue_size=3, shard_requests=1)
    under_test.record(sample("being written"))
    assert eventually(under_test._queue.empty)
    for n in range(queued):
        under_test.record(sample(f"r{n}"))
    under_test.close(patience=0.1)
    assert under_test.dropped >= queued
    store.open.set()


def test_domains_without_end_are_folded_before_they_are_recorded(store):
    under_test = recorder(store, queue_size=100, shard_requests=50)
    for n in range(50):
        under_test.record(sample(f"r{n}", domain=f"tenant {n}"))
    under_test.close()
    assert store.domains[:2] == ["tenant_0", "tenant_1"]
    assert store.domains[-1] == OTHER
    assert len(set(store.domains)) == MAX_DOMAINS + 1


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left"), MemoryError()], ids=repr)
def test_states_are_there_before_their_sample_and_what_they_fail_for_costs_them_alone(
    store, tmp_path, monkeypatch, caplog, error
):
    ring = ArrayRing(tmp_path / "states", 10_000)
    states = np.arange(6, dtype=np.uint16).reshape(3, 2)
    under_test = Recorder(store, RecorderConfig(flush_seconds=60.0, shard_requests=1), ring)
    store.open.clear()
    one = sample("one")
    under_test.record(one, states)
    key = one.read_tokens.tobytes()
    assert eventually(lambda: ring.get(key, (1, 2), np.uint16) is not None)
    assert np.array_equal(ring.get(key, (1, 2), np.uint16), states[:1]), "of what was read of it"
    store.open.set()

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(ring, "put", fails)
    for number in range(3):
        under_test.record(sample(f"{number}"), states)
    under_test.close()
    assert store.shards == [["one"], ["0"], ["1"], ["2"]]
    assert under_test.failures.counts["states"] == 3
    assert caplog.text.count("a trainer has to make them again") == 1
    assert ring.get(key, (1, 2), np.uint16) is None


def test_a_full_disk_costs_the_states_that_are_kept(store, tmp_path):
    ring = ArrayRing(tmp_path / "states", 10_000)
    under_test = Recorder(store, RecorderConfig(flush_seconds=60.0, shard_requests=1), ring)
    one = sample("one")
    under_test.record(one, np.zeros((1, 2), np.uint16))
    assert eventually(lambda: under_test.recorded == 1)
    assert ring.get(one.read_tokens.tobytes(), (1, 2), np.uint16) is not None
    store.is_full = True
    under_test.record(sample("two"))
    assert eventually(lambda: under_test.recorded == 2)
    assert ring.get(one.read_tokens.tobytes(), (1, 2), np.uint16) is None
    assert under_test.failures.counts["states"] == 1
    under_test.close()


@pytest.mark.parametrize("waiting", ["samples", "states"])
def test_while_the_store_hangs_what_waits_is_bounded_and_no_sample_is_lost_for_its_states(
    store, tmp_path, monkeypatch, waiting
):
    states = np.zeros((1, 1000), np.uint16) if waiting == "states" else None
    one = states.nbytes if states is not None else sample("size").nbytes
    monkeypatch.setattr(recorder_module, "WAITING_BYTES", 10 * one)
    under_test = Recorder(store, RecorderConfig(flush_seconds=60.0, shard_requests=1), ArrayRing(tmp_path, 10_000))
    store.open.clear()
    under_test.record(sample("first"), states)
    assert eventually(lambda: under_test._queue.empty())
    for number in range(14):
        under_test.record(sample(f"{number}"), states)
    lost = {"samples": under_test.dropped, "states": under_test.failures.counts["states"]}
    assert lost == {"samples": 0, "states": 0} | {waiting: 5}, "the first is one of ten"
    store.open.set()
    assert eventually(lambda: not (under_test._taken - under_test._done).any())
    under_test.record(sample("last"), states)
    under_test.close()
    assert store.shards[-1] == ["last"], "what is written waits no more"
    assert {"samples": under_test.dropped, "states": under_test.failures.counts["states"]} == lost
