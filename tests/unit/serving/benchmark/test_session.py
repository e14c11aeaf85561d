"""A benchmark goes on without a peer that fails, whenever it does."""

from pathlib import Path
from typing import Any

import pytest

from hotdraft.serving.benchmark import session
from hotdraft.serving.benchmark.engines.client import Memory, WorkerError
from hotdraft.serving.benchmark.engines.engine import PLAIN, EngineSettings, Mode, RunResult
from hotdraft.serving.benchmark.plan import BenchPlan

PLAN = BenchPlan(EngineSettings(Path("t"), None, "float32", 1, Path("c")), ("openvino",), [[1]], 4, repeats=2)


def worker_that_fails_at(run: int) -> type:
    class Worker:
        version, rss_imported_mb, memory = "1", 0.0, Memory(1, 1)

        def __init__(self, name: str, *_: Any) -> None:
            self._name, self._runs = name, 0

        def __enter__(self) -> "Worker":
            return self

        def __exit__(self, *_: object) -> None: ...

        def wait_ready(self) -> None: ...

        def modes(self, concurrency: int) -> list[Mode]:
            return [PLAIN] if self._name == "hotdraft" else [PLAIN, Mode("speculative", 1)]

        def run(self, mode: Mode, prompts: list[list[int]], max_tokens: int, concurrency: int) -> RunResult:
            self._runs += 1
            if (self._name, self._runs) == ("openvino", run):
                raise WorkerError("openvino: out of memory")
            return RunResult(1.0, [[1] * max_tokens for _ in prompts], [])

        def measure(self, *_: object) -> dict[str, float]:
            return {"bytes_per_second": 1.0}

    return Worker


@pytest.mark.parametrize("run", [1, 2, 3, 6])
def test_a_peer_that_fails_in_its_warm_up_or_later_is_left_out(run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Worker", worker_that_fails_at(run))
    measured = session.run(PLAN, Path(), lambda _: None)
    assert measured.left_out == {"openvino": "openvino: out of memory"}
    assert [(item.engine, item.repeat) for item in measured.measurements] == [("hotdraft", 0), ("hotdraft", 1)]
