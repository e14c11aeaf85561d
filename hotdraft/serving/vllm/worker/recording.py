"""What one worker records, and the guard that keeps its errors from the engine.

On a GPU a pass's distributions come to the host by a stream of their own, into pinned memory: nothing here waits
for the device. An error is told in the journal, and ends recording, never the engine.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotdraft.serving.engine.recorder import Recorder
from hotdraft.serving.sampling.target_log import pack, unpack
from hotdraft.serving.vllm.journal import Journal
from hotdraft.serving.vllm.worker.request_log import RequestLog, VerifyStep
from hotdraft.serving.vllm.worker.requests import ServedRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Begun:
    """A pass whose tokens are not drawn yet."""

    request_ids: list[str]
    num_drafted: list[int]
    logged: dict[int, int]
    """Places of the requests whose distributions are recorded, with the number of their positions."""
    logits: Tensor | None
    """Theirs, [T, V], as they were before anything was drawn."""


class Recording:
    """Follows the passes of one runner's target. All methods may be called after it ended."""

    def __init__(self, journal: Journal, recorder: Recorder | None, top_k: int) -> None:
        self.draft_version = 0
        """That drafts now."""
        self.problem: str | None = None
        """Why it ended; None while it goes on."""
        self._journal = journal
        self._recorder = recorder
        self._top_k = top_k
        self._logs: dict[str, RequestLog] = {}
        self._underway: deque[Callable[[], bool]] = deque()
        """What is to be done in this order, each as soon as it is ready, which it then says."""
        self._stream: Any = None

    @property
    def dropped(self) -> int:
        return self._recorder.dropped if self._recorder is not None else 0

    def guarded(self, part: Callable[[], Any]) -> Any:
        """What `part` gives; None where it fails, which ends recording."""
        if self.problem is not None:
            return None
        try:
            return part()
        except Exception as error:
            self.end(f"{type(error).__name__}: {error}")
            logger.exception("hotdraft records nothing more, vLLM serves on")
            return None

    def end(self, problem: str) -> None:
        self._stop(problem)
        self._journal.tell("detached", why=problem)

    def close(self) -> None:
        """Record nothing more, as was asked: of each answer what came so far, as vLLM tells the end of one only
        before its next pass."""
        self.guarded(self._finish_all)
        self._stop("closed")

    def _stop(self, problem: str) -> None:
        self.problem = problem
        self._logs.clear()
        self._underway.clear()

    def schedule(self, new: Sequence[Any], finished: Sequence[str], resumed: Sequence[str]) -> None:
        """What the scheduler says before a pass. A request that was preempted is not followed: what it lost may
        come twice."""
        ended = [*finished, *resumed]
        if ended:
            self._underway.append(lambda: self._finish(finished, resumed))
            self._drain()
        for one in new:
            request = ServedRequest.of(one)
            if request is None:
                continue
            if request.left_out is None and not (self._recorder and self._recorder.wants_next()):
                request = replace(request, left_out="sample_rate")
            self._logs[request.request_id] = RequestLog(request)

    def begin(self, request_ids: Sequence[str], num_drafted: Sequence[int], logits: Tensor) -> Begun:
        """Before tokens are drawn from `logits` [sum of num_drafted + R, V], which may change them."""
        logged: dict[int, int] = {}
        rows: list[int] = []
        start = 0
        for place, (request_id, drafts) in enumerate(zip(request_ids, num_drafted, strict=True)):
            log = self._logs.get(request_id)
            if log is not None and log.request.left_out is None:
                logged[place] = drafts + 1
                rows += range(start, start + drafts + 1)
            start += drafts + 1
        if start != len(logits):
            raise ValueError(f"{len(logits)} rows of logits for {start} positions")
        kept = logits[torch.tensor(rows, device=logits.device)] if rows else None
        return Begun(list(request_ids), [int(number) for number in num_drafted], logged, kept)

    def finish_pass(self, begun: Begun, drafted: Tensor, sampled: Tensor, num_sampled: Tensor) -> None:
        """What was drafted [sum of num_drafted], what came [R, S], and how much of that counts [R]."""
        version = self.draft_version
        logits, logged = begun.logits, begun.logged
        if logits is not None and logits.device.type == "cpu":  # elsewhere to know the lengths is to wait
            logits, logged = _drawn_only(logits, logged, num_sampled)
        tensors = [drafted, sampled, num_sampled]
        if logits is not None:
            tensors.append(pack(logits.float(), self._top_k, None))
        arrays, is_ready = self._to_host(tensors)

        def take() -> bool:
            if not is_ready():
                return False
            drafted_ids, sampled_ids, counts, *packed = (one.numpy() for one in arrays)
            target = unpack(packed[0], with_tokens=False) if packed else None
            ids, numbers = begun.request_ids, begun.num_drafted
            self._take(VerifyStep(ids, numbers, drafted_ids, sampled_ids, counts, logged, target, version))
            return True

        self._underway.append(take)
        self._drain()

    def _to_host(self, tensors: list[Tensor]) -> tuple[list[Tensor], Callable[[], bool]]:
        """Copies, and what says that they are there."""
        device = tensors[0].device
        if device.type != "cuda":
            return [one.clone() for one in tensors], lambda: True
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            hosted: list[Tensor] = []
            for one in tensors:
                one.record_stream(self._stream)
                pinned = torch.empty(one.shape, dtype=one.dtype, pin_memory=True)
                hosted.append(pinned.copy_(one, non_blocking=True))
            done = torch.cuda.Event()
            done.record(self._stream)
        return hosted, done.query

    def _drain(self) -> None:
        while self._underway and self._underway[0]():
            self._underway.popleft()

    def _take(self, step: VerifyStep) -> None:
        first = start = 0
        for place, (request_id, drafts) in enumerate(zip(step.request_ids, step.num_drafted, strict=True)):
            drafted = step.drafted_ids[first : first + drafts]
            first += drafts
            positions, target = step.logged.get(place), None
            if positions is not None and step.target is not None:
                target = step.target.positions(start, start + positions)
                start += positions
            log = self._logs.get(request_id)
            if log is None:
                continue
            log.take(step.sampled_ids[place, : step.num_sampled[place]], drafted, target, step.draft_version)

    def _finish_all(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
        self._drain()
        self._finish(list(self._logs), ())

    def _finish(self, finished: Sequence[str], resumed: Sequence[str]) -> bool:
        for request_id in resumed:
            self._logs.pop(request_id, None)
        for request_id in finished:
            log = self._logs.pop(request_id, None)
            if log is None:
                continue
            request, counts = log.request, log.counts()
            sample = log.sample() if request.left_out is None else None
            if sample is not None and self._recorder is not None:
                self._recorder.record(sample)
            self._journal.tell(
                "finished",
                id=request_id,
                domain=request.domain,
                client=request.client,
                prompt_tokens=len(request.prompt_ids),
                temperature=request.temperature,
                seeded=request.seeded,
                recorded=sample is not None,
                left_out=request.left_out,
                began=log.began,
                dropped=self.dropped,
                **asdict(counts),
            )
        return True


def _drawn_only(logits: Tensor, logged: dict[int, int], num_sampled: Tensor) -> tuple[Tensor, dict[int, int]]:
    """Of the positions of each logged request those that count."""
    counts = {place: int(num_sampled[place]) for place in logged}
    starts = np.cumsum([0, *logged.values()])
    rows = [start + row for start, count in zip(starts, counts.values(), strict=False) for row in range(count)]
    return logits[rows], counts
