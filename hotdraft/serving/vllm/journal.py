"""What workers tell the front end, one JSON line an event, in a folder that both see.

vLLM returns the reply of one engine alone to a remote call, whatever number of them there is, so every worker
acknowledges here. A worker writes segments; whoever follows deletes those that it has read to their end.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SEGMENT_BYTES = 4_000_000
UNKNOWN = -1
"""Version of a draft, or of several, whose weights are not known to be one version's."""


def engine_names(parallel: Any) -> list[str]:
    """Of the engines that a front end with vLLM's `parallel` configuration has, as its `core_client` counts them:
    its machine's alone where something else spreads requests over several."""
    is_local = parallel.data_parallel_external_lb or parallel.data_parallel_hybrid_lb
    number = parallel.data_parallel_size_local if is_local else parallel.data_parallel_size
    return [_engine_name(parallel.data_parallel_index + place) for place in range(number)]


def worker_name(parallel: Any, stage: int, rank: int) -> str:
    return f"{_engine_name(parallel.data_parallel_index)}-stage{stage}-rank{rank}"


def engine_of(worker: str) -> str:
    return worker.split("-", 1)[0]


def _engine_name(index: int) -> str:
    return f"engine{index}"


class Journal:
    """A worker's own segments. From any thread; what cannot be written is counted in `lost`."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.lost = 0
        self._folder = folder
        self._worker = worker
        self._number = 0
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = self._next()

    def tell(self, event: str, **facts: Any) -> None:
        line = json.dumps({"event": event, "worker": self._worker, **facts}) + "\n"
        with self._lock:
            try:
                self._file.write(line)
                self._file.flush()
                if self._file.tell() > SEGMENT_BYTES:
                    full, self._file = self._file, self._next()
                    full.close()
            except OSError:
                self.lost += 1

    def _next(self) -> Any:
        self._number += 1
        return (self._folder / f"{self._worker}.{self._number:06d}.jsonl").open("w", encoding="utf-8")


class JournalFollower:
    """Reads what all workers tell, each in its order."""

    def __init__(self, folder: Path) -> None:
        self.broken = 0
        """Lines that were no JSON, as a full disk leaves them."""
        self._folder = folder
        self._offsets: dict[Path, int] = {}

    def clear(self) -> None:
        """Forget what earlier workers told."""
        for path in self._folder.glob("*.jsonl"):
            path.unlink(missing_ok=True)
        self._offsets = {}

    def news(self) -> Iterator[dict[str, Any]]:
        """Events since the last time; lines that are not whole yet come the next time."""
        paths = sorted(self._folder.glob("*.jsonl"))
        newest = {_worker_of(path): path for path in paths}
        for path in paths:
            try:
                with path.open("rb") as file:
                    file.seek(self._offsets.get(path, 0))
                    content = file.read()
            except FileNotFoundError:
                continue
            whole = content[: content.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for line in whole.splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    self.broken += 1
                    continue
                yield event
            if path != newest[_worker_of(path)]:
                path.unlink(missing_ok=True)
                self._offsets.pop(path, None)


def _worker_of(path: Path) -> str:
    return path.name.split(".", 1)[0]
