"""Hot swap in vLLM: what `AdapterSync` asks of a swapper, by remote calls and the workers' acknowledgements.

First every worker that holds a part of the draft stages the version, in a thread, while it serves; only if all of
them could are they told to commit, each between two of its steps. If one of several engines does not take it up,
all go back to the version from before: acceptance is one number only if all draft alike.
"""

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.serving.messages.events import SwapEvent, SwapReason
from hotdraft.serving.updates.hot_swap import SwapError
from hotdraft.serving.updates.swapper import NotNowError
from hotdraft.serving.vllm.front.followed_engine import FollowedEngine
from hotdraft.serving.vllm.journal import UNKNOWN

logger = logging.getLogger(__name__)

STAGE_SECONDS = 600.0
COMMIT_SECONDS = 120.0


@dataclass(frozen=True)
class StagedVersion:
    version: int
    folder: Path | None


class VllmSwapper:
    """`call(method, *args)` calls a method of all workers of all engines, and gives what the first engine's say.

    `is_asleep` says whether vLLM has been told to do nothing, when its weights' memory may be gone.
    """

    def __init__(
        self,
        engine: FollowedEngine,
        call: Callable[..., Any],
        *,
        is_asleep: Callable[[], bool] = lambda: False,
        after_swap: Callable[[], object] = lambda: None,
    ) -> None:
        self._engine = engine
        self._call = call
        self._is_asleep = is_asleep
        self._after_swap = after_swap
        self._live = StagedVersion(0, None)
        """That all workers took up last."""

    @property
    def live_version(self) -> int:
        """`UNKNOWN` from a commit that failed halfway until all workers are at one version again."""
        return self._engine.draft_version

    def stage(self, version: int, folder: Path | None) -> StagedVersion:
        """Have all workers read, check and prepare `version`.

        Raises `AdapterError` naming what is wrong with it, `NotNowError`, and `RuntimeError` for a worker that
        failed otherwise or did not answer.
        """
        self._check_workers()
        staged = StagedVersion(version, None if folder is None or version == 0 else folder.absolute())
        self._stage(staged)
        return staged

    def swap(self, staged: StagedVersion, reason: SwapReason) -> SwapEvent:
        """Serve `staged` on all workers. Raises `SwapError` if one does not, `RuntimeError` if one says nothing,
        `NotNowError` where it cannot be tried.

        The version from before serves on then; where not all could go back to it, nobody knows which does.
        """
        self._check_workers()
        was = self.live_version
        try:
            told, failed = self._commit(staged.version)
        except Exception:  # some may have, and may yet
            self._engine.draft_version = UNKNOWN
            raise
        if failed:
            if len(failed) < len(told) or any(event["serves"] == UNKNOWN for event in failed):
                self._go_back()
            self._check_awake()
            error = RuntimeError if was == UNKNOWN else SwapError  # what is lost of the draft is no version's fault
            raise error(f"version {staged.version}: {failed[0]['worker']}: {failed[0]['why']}")
        previous, self._live = self._live.version, staged
        stall = max((event["seconds"] for event in told.values()), default=0.0)
        event = SwapEvent(staged.version, previous, reason, stall)
        self._engine.announce_swap(event)
        self._after_swap()
        return event

    def _check_workers(self) -> None:
        if draftless := self._engine.draftless_engines:
            raise NotNowError(f"no worker of {', '.join(draftless)} has a draft to swap")
        self._check_awake()

    def _check_awake(self) -> None:
        if self._is_asleep():
            raise NotNowError("vLLM sleeps, or its scheduler is paused")

    def _commit(self, version: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What all said, and what those said that could not."""
        told = self._ask("hotdraft_commit", version, ends=("swapped", "not_swapped"), seconds=COMMIT_SECONDS)
        return told, [event for event in told.values() if event["event"] == "not_swapped"]

    def _go_back(self) -> None:
        """All to the version that they were at, if they can."""
        self._engine.draft_version = UNKNOWN
        try:
            self._stage(self._live)
            _, failed = self._commit(self._live.version)
        except Exception as error:  # noqa: BLE001 -- whatever it is, that is not what the caller is to hear of
            failed = [{"worker": "workers", "why": str(error)}]
        if failed:
            why = f"{failed[0]['worker']}: {failed[0]['why']}"
            logger.error("not all are back at version %d: %s", self._live.version, why)
        else:
            self._engine.draft_version = self._live.version

    def _stage(self, staged: StagedVersion) -> None:
        folder = None if staged.folder is None else str(staged.folder)
        told = self._ask(
            "hotdraft_stage", staged.version, folder, ends=("staged", "not_staged"), seconds=STAGE_SECONDS
        )
        failed = [event for event in told.values() if event["event"] == "not_staged"]
        if failed:
            self._call("hotdraft_discard")
            error = AdapterError if failed[0]["kind"] == "adapter" else RuntimeError
            raise error(failed[0]["why"])

    def _ask(self, method: str, version: int, *args: Any, ends: tuple[str, str], seconds: float) -> dict[str, Any]:
        """What each worker with a draft came to; raises `RuntimeError` naming those that said nothing in time."""
        heard: queue.Queue[dict[str, Any]] = queue.Queue()
        waiting, told = set(self._engine.drafting_workers), {}
        deadline = time.monotonic() + seconds
        with self._engine.heard_by(heard.put):
            self._call(method, version, *args)
            while waiting:
                try:
                    event = heard.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    raise RuntimeError(f"{', '.join(sorted(waiting))}: no answer in {seconds:g} s") from None
                if event["event"] in ends and event["version"] == version:
                    waiting.discard(event["worker"])
                    told[event["worker"]] = event
        return told
