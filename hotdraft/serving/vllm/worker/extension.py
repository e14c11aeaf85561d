"""What hotdraft adds to vLLM's workers, by `--worker-extension-cls`.

vLLM calls these methods between two steps. Staging is begun by one and done in a thread; committing copies, probes
and, where any rank of the engine disagrees, copies back. What came of it is told in the journal.
"""

import importlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.adapter_folder import AdapterError
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.engine.recorder import Recorder, ServedModels
from hotdraft.serving.vllm.journal import UNKNOWN, Journal, worker_name
from hotdraft.serving.vllm.versions import installed
from hotdraft.serving.vllm.worker import runner_v1, runner_v2
from hotdraft.serving.vllm.worker.agreement import AgreedDraft, all_agree
from hotdraft.serving.vllm.worker.live_draft import DraftError, LiveDraft
from hotdraft.serving.vllm.worker.recording import Recording
from hotdraft.serving.vllm.worker.seams import SeamError
from hotdraft.serving.vllm.worker.sleep import Sleep
from hotdraft.serving.vllm.worker.staging import DraftFile, DraftVersion
from hotdraft.serving.vllm.worker.temperatures import keep_temperatures

logger = logging.getLogger(__name__)


class WorkerExtension:
    """A mix-in for vLLM's worker, which has none of these names."""

    hotdraft_part: Any = None

    def hotdraft_attach(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Begin to record, and make ready to swap; to call it again changes nothing.

        Where a rank of this engine cannot, none does, and each says why as `failed`.
        """
        if self.hotdraft_part is not None:
            return self.hotdraft_part.status()
        part, why = None, "another rank of its engine failed"
        try:
            part = WorkerPart(self, settings)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            logger.exception("hotdraft does nothing in this worker, vLLM serves on")
        if not all_agree(part is not None):
            if part is not None:
                part.close()
            return {"failed": why}
        assert part is not None
        part.warm_up()
        self.hotdraft_part = part
        return part.status()

    def hotdraft_stage(self, version: int, folder: str | None) -> None:
        if self.hotdraft_part is not None:
            self.hotdraft_part.stage(version, None if folder is None else Path(folder))

    def hotdraft_commit(self, version: int) -> None:
        if self.hotdraft_part is not None:
            self.hotdraft_part.commit(version)

    def hotdraft_discard(self) -> None:
        if self.hotdraft_part is not None:
            self.hotdraft_part.discard()

    def hotdraft_close(self) -> None:
        if self.hotdraft_part is not None:
            self.hotdraft_part.close()

    def hotdraft_status(self) -> dict[str, Any] | None:
        return None if self.hotdraft_part is None else self.hotdraft_part.status()


class WorkerPart:
    """One worker's recording and draft, told what to do by `settings` as `worker_settings` makes them.

    To make one asks no other rank for anything.
    """

    def __init__(self, worker: Any, settings: dict[str, Any]) -> None:
        from vllm.distributed import get_pp_group, get_tp_group

        installed()
        if worker.device.type == "cpu":
            keep_temperatures(importlib.import_module("vllm.v1.sample.rejection_sampler"))
        config = HotdraftConfig(**settings["config"])
        self._worker = worker
        stage, rank = get_pp_group(), get_tp_group().rank_in_group
        self.name = worker_name(worker.vllm_config.parallel_config, stage.rank_in_group, rank)
        self._journal = Journal(Path(settings["journal"]), self.name)
        self._staged: tuple[int, DraftVersion, Any] | None = None
        self.version = 0
        self.recording: Recording | None = None
        self._recorder: Recorder | None = None
        self.left_alone: str | None = None
        """Why this worker swaps or records nothing."""
        self._draft = self._make_draft(settings)
        self._sleep = Sleep(worker, self._lose_draft)
        if stage.is_last_rank and rank == 0:
            self._record(config)

    def warm_up(self) -> None:
        """Together with the other ranks of this engine."""
        usable = all_agree(self._draft is not None)
        if usable:
            try:
                assert self._draft is not None
                self._draft.warm_up()
            except Exception as error:  # noqa: BLE001 -- it would end vLLM's worker
                usable = False
                self._leave_draft(error)
            usable = all_agree(usable)
        if not usable and self._draft is not None:
            self._leave_draft(DraftError("another rank's part of it cannot"))
        self._journal.tell("attached", **self.status())

    def status(self) -> dict[str, Any]:
        recording = self.recording
        return {
            "worker": self.name,
            "has_draft": self._draft is not None,
            "version": self.version,
            "records": recording is not None and recording.problem is None,
            "problem": self.left_alone or (recording.problem if recording else None),
            "dropped": recording.dropped if recording else 0,
        }

    def stage(self, version: int, folder: Path | None) -> None:
        """Read, check, merge and prepare in a thread; the journal hears of the end."""
        self._staged = None
        if self._draft is not None:
            threading.Thread(target=self._stage, args=(version, folder), name="hotdraft-stage", daemon=True).start()

    def commit(self, version: int) -> None:
        """Exchange the draft's weights for the staged ones if all of this engine's ranks can and agree."""
        if self._draft is None:
            return
        staged, self._staged = self._staged, None
        started = time.perf_counter()
        try:
            distance = self._exchange(version, staged)
        except Exception as error:  # noqa: BLE001 -- it would end vLLM's worker
            why = f"{type(error).__name__}: {error}"
            self._journal.tell("not_swapped", version=version, serves=self.version, why=why)
            return
        self._serve(version)
        seconds = time.perf_counter() - started
        self._journal.tell("swapped", version=version, seconds=seconds, distance=distance)

    def _serve(self, version: int) -> None:
        self.version = version
        if self.recording is not None:
            self.recording.draft_version = version

    def discard(self) -> None:
        self._staged = None

    def close(self) -> None:
        """Write what is recorded, and record nothing more."""
        if self.recording is not None:
            self.recording.close()
        if self._recorder is not None:
            self._recorder.close()

    def _make_draft(self, settings: dict[str, Any]) -> AgreedDraft | None:
        model = self._worker.get_draft_model()
        if model is None:
            return None
        dtype = self._worker.vllm_config.speculative_config.draft_model_config.dtype
        self._file = DraftFile(Path(settings["draft_folder"]), settings["fingerprint"], dtype)
        try:
            return AgreedDraft(LiveDraft(model), self._worker.vllm_config)
        except Exception as error:  # noqa: BLE001 -- it is recorded all the same
            self._leave_draft(error)
            return None

    def _leave_draft(self, error: Exception) -> None:
        self._draft = None
        self.left_alone = f"the draft cannot be swapped: {type(error).__name__}: {error}"
        logger.error("hotdraft swaps nothing here, vLLM serves on", exc_info=error)

    def _lose_draft(self) -> None:
        if self._draft is not None:
            self._serve(UNKNOWN)
            self._journal.tell("emptied")

    def _record(self, config: HotdraftConfig) -> None:
        told = config.recorder
        method = self._worker.vllm_config.speculative_config.rejection_sample_method
        if told.enabled and method != "synthetic":
            buffer = ReplayBuffer.of(config, may_be_away=True)
            self._recorder = Recorder(buffer, told, models=ServedModels.of(config))
        self.recording = Recording(self._journal, self._recorder, told.top_k)
        runner = self._worker.model_runner
        kind = next((module for module in (runner_v1, runner_v2) if module.fits(runner)), None)
        try:
            if kind is None:
                raise SeamError(f"{type(runner).__name__} is no model runner that hotdraft knows")
            kind.attach(runner, self.recording)
        except (SeamError, AttributeError) as error:
            self.left_alone = str(error)
            self.recording.end(self.left_alone)
            logger.error("hotdraft records nothing in this vLLM, which serves on: %s", error)

    def _stage(self, version: int, folder: Path | None) -> None:
        try:
            assert self._draft is not None
            read = self._file.version(folder)
            self._staged = version, read, self._draft.prepare(read.weights)
        except Exception as error:  # noqa: BLE001 -- whatever a version brings about is its own affair
            kind = "adapter" if isinstance(error, AdapterError) else "other"
            self._journal.tell("not_staged", version=version, kind=kind, why=f"{error}" or type(error).__name__)
        else:
            self._journal.tell("staged", version=version)

    def _exchange(self, version: int, staged: tuple[int, DraftVersion, Any] | None) -> float:
        assert self._draft is not None
        if self._sleep.is_on:
            raise DraftError("vLLM sleeps")
        if not all_agree(staged is not None and staged[0] == version):
            raise DraftError(f"version {version} is not staged on every rank")
        assert staged is not None
        before = self.version
        self._serve(UNKNOWN)  # and so it stays where the weights cannot be exchanged back
        found = self._draft.exchange(*staged[1:])
        if isinstance(found, Exception):
            self._serve(before)
            raise found
        return found
