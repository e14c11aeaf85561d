"""What stands around the thread that follows the champion: a registry and a swapper that obey the test."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

from mlflow.exceptions import MlflowException

from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.pipeline.store.adapter_version import RETIRED, ROLLED_BACK, AdapterVersion
from hotdraft.pipeline.store.connection import StoreError
from hotdraft.pipeline.store.errors import RegistryError
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.metrics.listener import ServingMetrics
from hotdraft.serving.updates.hot_swap import HotSwapper, StagedDraft

BROKEN = AdapterError("lora_A has values that are not finite")


class Registry:
    """What `AdapterSync` needs of an `AdapterRegistry`, in memory."""

    def __init__(self) -> None:
        self.champions: list[int] = []
        self.rolled_back: dict[int, str] = {}
        self.down = False
        self.keeps_files_back = False
        self.fetched = Mock()
        self.fetched.discard.return_value = False
        self.odd: Exception | None = None
        self.rejected: set[int] = set()
        self.asked_after: list[int] = []

    def promote(self, version: int) -> None:
        self.champions.append(version)

    def champion(self) -> int:
        self._reach()
        return self.champions[-1] if self.champions else 0

    def rollback(self, *, reason: str, version: int | None = None) -> int:
        self._reach()
        if not self.champions or version not in (None, self.champions[-1]):
            raise RegistryError(f"version {version} is not the champion")
        self.rolled_back[self.champions.pop()] = reason
        return self.champion()

    def champions_before(self, version: int) -> Iterator[int]:
        self._reach()
        yield from reversed(self.champions[: self.champions.index(version)])

    def version(self, version: int) -> AdapterVersion:
        self._reach()
        status = ROLLED_BACK if version in self.rolled_back else RETIRED
        return AdapterVersion(version, status, [], "run", 0.0, {}, None, pinned=False)

    def refused(self, *, after: int = 0) -> set[int]:
        self._reach()
        if self.odd is not None:
            raise self.odd
        self.asked_after.append(after)
        return {version for version in {*self.rolled_back, *self.rejected} if version > after}

    def download(self, version: int, into: Path | None = None) -> Path:
        self._reach()
        if self.keeps_files_back:
            raise StoreError("s3://us:secret@store is away")
        return Path(f"/adapters/{version}")

    def _reach(self) -> None:
        if self.down:
            raise MlflowException("no route to the store")


class Swapper(HotSwapper):
    """Stages the draft itself as every version but those in `broken`: what is swapped is tested elsewhere."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, "fingerprint")
        self.broken: dict[int, Exception] = {}
        self.staged: list[int] = []

    def stage(self, version: int, folder: Path | None) -> StagedDraft:
        self.staged.append(version)
        if version in self.broken:
            raise self.broken[version]
        assert version == 0 or folder == Path(f"/adapters/{version}")
        return StagedDraft(version, self._original.weights)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def count(metrics: ServingMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "tiny", **labels})
