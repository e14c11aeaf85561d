"""vLLM's sleep, which takes away the memory that a worker's weights lie in, and at level 2 what they were."""

from collections.abc import Callable, Sequence
from typing import Any

from hotdraft.serving.vllm.worker.seams import put_before

EMPTYING = 2
"""Level from which on vLLM keeps no copy."""


class Sleep:
    """Of one worker; `emptied` is called when its weights are about to be lost."""

    def __init__(self, worker: Any, emptied: Callable[[], None]) -> None:
        self.is_on = False
        """The weights may not be touched."""
        self._emptied = emptied
        put_before(worker, "sleep", self._begin)
        put_before(worker, "wake_up", self._end)

    def _begin(self, level: int = 1) -> None:
        self.is_on = True
        if level >= EMPTYING:
            self._emptied()

    def _end(self, tags: Sequence[str] | None = None) -> None:
        if tags is None or "weights" in tags:
            self.is_on = False
