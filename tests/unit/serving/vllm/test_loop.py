"""The loop in vLLM's front end begins with all workers or not at all."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import REGISTRY

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.system.run_lock import run_lock
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.metrics.state_metrics import Sources
from hotdraft.serving.vllm.front import exported as exported_module
from hotdraft.serving.vllm.front import followed_engine
from hotdraft.serving.vllm.front import loop as module
from hotdraft.serving.vllm.front.exported import Exported
from hotdraft.serving.vllm.front.followed_engine import FollowedEngine
from hotdraft.serving.vllm.front.loop import LoopBesideVllm
from hotdraft.serving.vllm.journal import Journal, JournalFollower
from tests.unit.serving.vllm.fakes import parallel_config

FIRST = "engine0-stage0-rank0"


class Client:
    """vLLM's engine."""

    def __init__(self, reply: dict[str, Any] | None = None, attached: tuple[str, ...] = (FIRST,)) -> None:
        self.called: list[str] = []
        self.attached = attached
        self.is_dead = False
        self._reply = reply or {"worker": FIRST}

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        if self.is_dead:
            raise RuntimeError("EngineCore encountered an issue")
        self.called.append(method)
        if args:
            [self.settings] = args
            for name in self.attached:
                Journal(Path(self.settings["journal"]), name).tell("attached", has_draft=True, version=0)
        return [{"worker": FIRST}, self._reply]

    def shutdown(self, timeout: float | None = None) -> None:
        self.called.append("shutdown")
        self.is_dead = True


@pytest.fixture
def loop_of(tmp_path: Path, tiny_draft: str, empty_mlflow_db: Path) -> Callable[..., LoopBesideVllm]:
    shutil.copy(empty_mlflow_db, tmp_path)
    return partial(a_loop, tmp_path, tiny_draft)


def a_loop(tmp_path: Path, tiny_draft: str, client: Client, data_parallel_size: int = 1) -> LoopBesideVllm:
    config = HotdraftConfig(target=tiny_draft, draft=tiny_draft, run_dir=tmp_path, server={"admin_keys": ["k"]})
    told = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=2, model=tiny_draft),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=parallel_config(data_parallel_size=data_parallel_size),
        model_config=SimpleNamespace(max_model_len=64),
    )
    return LoopBesideVllm(config, tmp_path / "c.yaml", {}, vllm_config=told, engine_client=client)


def test_a_draft_that_vllm_has_from_the_hub_is_read_from_where_its_files_are(
    loop_of: Callable[[Client], LoopBesideVllm], tiny_draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "local_folder", lambda name: {tiny_draft: tmp_path / "snapshot"}[name])

    async def attach(client: Client) -> None:
        loop = loop_of(client)
        await loop.start()
        await loop.stop()

    client = Client()
    asyncio.run(attach(client))
    assert client.settings["draft_folder"] == str(tmp_path / "snapshot")


def test_a_worker_that_cannot_take_part_ends_the_loop_on_all(loop_of: Callable[[Client], LoopBesideVllm]) -> None:
    async def begin(client: Client) -> None:
        await loop_of(client).start()

    client = Client({"failed": "OSError: no space left on device"})
    with pytest.raises(RuntimeError, match="a worker cannot take part: OSError: no space left"):
        asyncio.run(begin(client))
    assert client.called == ["hotdraft_attach", "hotdraft_close"]


def test_an_engine_of_which_nothing_is_heard_is_named(
    loop_of: Callable[..., LoopBesideVllm], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(followed_engine, "ATTACH_SECONDS", 0.0)

    async def status() -> dict[str, Any]:
        loop = loop_of(Client(), data_parallel_size=2)
        await loop.start()
        told = await asyncio.to_thread(lambda: TestClient(loop.app, "http://localhost").get("/status").json())
        await loop.stop()
        return told

    assert asyncio.run(status())["silent_engines"] == ["engine1"]
    assert "nothing is heard of engine1, so that no version is swapped in" in caplog.text


def test_what_is_recorded_is_written_before_vllm_ends_its_engine(
    loop_of: Callable[[Client], LoopBesideVllm],
) -> None:
    async def end_as_at_sigterm(client: Client) -> None:
        loop = loop_of(client)
        await loop.start()
        await asyncio.to_thread(client.shutdown, timeout=0)
        await loop.stop()

    client = Client()
    asyncio.run(end_as_at_sigterm(client))
    assert client.called == ["hotdraft_attach", "hotdraft_close", "shutdown"]


def test_an_engine_that_died_keeps_the_loop_from_nothing_when_it_ends(
    loop_of: Callable[[Client], LoopBesideVllm], tmp_path: Path
) -> None:
    async def end_after_a_crash(client: Client) -> None:
        loop = loop_of(client)
        await loop.start()
        client.is_dead = True
        await loop.stop()
        client.shutdown()  # as vLLM does in its event loop, which is not to wait for itself

    asyncio.run(end_after_a_crash(Client()))
    with run_lock(tmp_path, "server"):
        pass


def test_vllms_event_loop_does_not_wait_for_records_of_jobs() -> None:
    asked = threading.get_ident()

    class Jobs:
        def jobs(self) -> list[Any]:
            assert threading.get_ident() != asked
            return []

        def silent_seconds(self, job: Any) -> float:
            return 0.0

    engine = FollowedEngine(JournalFollower(Path()), engines=[], k=1, num_slots=1, max_model_len=8)
    exported = Exported(ServingMetrics(engine, "m", Sources(jobs=Jobs())))  # type: ignore[arg-type]
    start = threading.Thread(target=exported.start)
    start.start()
    start.join()
    shown = {family.name for family in REGISTRY.collect()}
    exported.stop()
    assert "hotdraft_jobs" in shown
    assert "hotdraft_jobs" not in {family.name for family in REGISTRY.collect()}


def test_metrics_that_cannot_be_gathered_are_told_of_once_and_those_from_before_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Jobs:
        asked = 0

        def jobs(self) -> list[Any]:
            self.asked += 1
            if self.asked > 1:
                raise KeyError("state")
            return []

        def silent_seconds(self, job: Any) -> float:
            return 0.0

    monkeypatch.setattr(exported_module, "GATHER_SECONDS", 0.001)
    engine, jobs = FollowedEngine(JournalFollower(Path()), engines=[], k=1, num_slots=1, max_model_len=8), Jobs()
    exported = Exported(ServingMetrics(engine, "m", Sources(jobs=jobs)))  # type: ignore[arg-type]
    exported.start()
    deadline = time.monotonic() + 10
    while jobs.asked < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    shown = {family.name for family in exported.collect()}
    exported.stop()
    assert jobs.asked >= 4
    assert "hotdraft_jobs" in shown
    assert len(caplog.records) == 1
