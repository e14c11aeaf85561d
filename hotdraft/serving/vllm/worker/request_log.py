"""From what target passes gave to the record of a request: pure, the same for every runner of vLLM."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample
from hotdraft.serving.messages.request import AnswerCounts
from hotdraft.serving.sampling.target_log import TargetLog
from hotdraft.serving.vllm.worker.requests import ServedRequest


@dataclass(frozen=True)
class VerifyStep:
    """One pass of the target over R requests, of which request r had `num_drafted[r]` tokens to verify."""

    request_ids: Sequence[str]
    num_drafted: Sequence[int]
    drafted_ids: np.ndarray
    """int [sum of num_drafted], one request after the other."""
    sampled_ids: np.ndarray
    """int [R, S]: what came, of which the first `num_sampled[r]` count."""
    num_sampled: np.ndarray
    """int [R]: accepted tokens and one more; 0 where a prompt is not read to its end."""
    logged: Mapping[int, int]
    """Places in `request_ids` of those whose distributions are in `target`, in its order, and how many each has."""
    target: TargetLog | None
    """[T, K], T the positions of the logged requests: the first ones of each, at least those that count."""
    draft_version: int
    """That drafts for the next pass."""


@dataclass(frozen=True)
class RequestCounts(AnswerCounts):
    """What came after the answer's end does not count."""

    draft_version: int
    """That drafted last; 0 if none did."""
    one_version: bool


class RequestLog:
    """The positions of a request's answer, pass by pass."""

    def __init__(self, request: ServedRequest) -> None:
        self.request = request
        self.began = time.time()
        self._output_ids: list[int] = []
        self._drafting: int | None = None
        """The version that drafted at the end of the last pass."""
        self._rounds: list[tuple[int, int, int]] = []
        """Position of the first token, drafted tokens, version, of each pass."""
        self._drafted: list[np.ndarray] = []
        self._accepted: list[np.ndarray] = []
        self._versions: list[np.ndarray] = []
        self._target: list[TargetLog] = []

    def take(self, tokens: np.ndarray, drafted_ids: np.ndarray, target: TargetLog | None, version: int) -> None:
        """A pass that gave `tokens` [m + 1] for `drafted_ids` [n], of which it accepted m; `version` drafts next.

        `target` holds the distributions at the first positions, m + 1 at least, if they are recorded.
        """
        if not len(tokens):
            return
        accepted, count = len(tokens) - 1, len(tokens)
        drafted_by = version if self._drafting is None else self._drafting
        self._drafting = version
        self._rounds.append((len(self._output_ids), len(drafted_ids), drafted_by))
        self._output_ids += tokens.tolist()
        drafted = np.full(count, NOT_DRAFTED, np.int32)
        drafted[: len(drafted_ids)] = drafted_ids[:count]
        self._drafted.append(drafted)
        self._accepted.append(np.arange(count) < accepted)
        self._versions.append(np.full(count, drafted_by, np.int32))
        if target is not None:
            self._target.append(target.positions(0, count))

    def counts(self) -> RequestCounts:
        length = self.request.length(self._output_ids)
        drafted, accepted = _joined(self._drafted, np.int32)[:length], _joined(self._accepted, bool)[:length]
        rounds = [one for one in self._rounds if one[0] < length]
        firsts = [start for start, drafts, _ in rounds if drafts]
        versions = {version for _, drafts, version in rounds if drafts}
        return RequestCounts(
            completion_tokens=length,
            rounds=len(rounds),
            drafted_tokens=sum(drafts for _, drafts, _ in rounds),
            examined_tokens=int((drafted >= 0).sum()),
            accepted_tokens=int(accepted.sum()),
            first_examined=len(firsts),
            first_accepted=int(accepted[firsts].sum()),
            draft_version=next((version for _, drafts, version in reversed(rounds) if drafts), 0),
            one_version=len(versions) < 2,
        )

    def sample(self) -> ReplaySample | None:
        """What the replay buffer keeps; None where a pass was not logged, or nothing came."""
        request, length = self.request, self.request.length(self._output_ids)
        if not length or len(self._target) != len(self._rounds):
            return None
        top_ids, top_logprobs, tail = (
            np.concatenate([getattr(log, part) for log in self._target])[:length]
            for part in ("top_ids", "top_logprobs", "tail_logprob")
        )
        return ReplaySample(
            request_id=request.request_id,
            created_at=time.time(),
            domain=request.domain,
            temperature=request.temperature,
            prompt_ids=np.asarray(request.prompt_ids, np.int32),
            output_ids=np.asarray(self._output_ids[:length], np.int32),
            target_top_ids=top_ids,
            target_top_logprobs=top_logprobs.astype(np.float16),
            target_tail_logprob=tail,
            drafted_ids=_joined(self._drafted, np.int32)[:length],
            accepted=_joined(self._accepted, bool)[:length],
            draft_versions=_joined(self._versions, np.int32)[:length],
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            salted=request.salted,
        )


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts])
