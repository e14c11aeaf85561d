"""When the draft should learn: the trigger of the self-improvement loop.

A job is due once the draft missed enough tokens since the last one. Moderately lazy is best: a
deployment after every step costs more throughput than it gains (Aurora, 2026).
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.config import HotdraftConfig
from pipeline.records import NOT_DRAFTED
from pipeline.replay import ReplayBuffer, is_held_out

LONG_TERM = 4
"""Requests that stand for the time before a drift, for each that shows it."""
DRIFT_HELD_OUT = 2
"""Held-out prompts of what is new without which the gate cannot tell a gain from chance, see `training.gate`."""


@dataclass(frozen=True)
class Decision:
    due: bool
    reason: str
    new_requests: int
    """Training requests recorded since the last job."""
    new_missed: int
    """Output positions of theirs that the draft missed; see `missed`."""
    possible: bool
    """Whether a job would find anything new, and the gate enough to judge by, whether or not one is due."""


@dataclass(frozen=True)
class LastJob:
    """The job that was finished last, for a trigger that was not there."""

    request: str
    """The newest request that it saw."""
    ended_at: float
    accepted: bool


def missed(drafted_ids: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """bool [N]: output positions of a request whose token the draft did not give.

    Its token was rejected, or the round drafted nothing, as rounds do when drafting does not pay: a draft
    too bad to be asked has most to learn. The token after an accepted one that was not drafted is the
    bonus of a round whose drafts were all accepted, and no miss. Shapes as in `ReplaySample`.
    """
    after_accepted = np.concatenate([[False], accepted[:-1]])
    return np.where(drafted_ids == NOT_DRAFTED, ~after_accepted, ~accepted)


class DistillTrigger:
    """Counts what the replay buffer gained since the last job, reading each shard once.

    A job is due once the draft missed enough tokens, once the newest requests fare worse than those before
    them, which asks for no `min_new_requests`, or once enough time has passed. Held-out requests teach nothing
    and are not counted, but no job is due before the gate has its `min_requests` of them, each of another prompt,
    nor while acceptance falls before it has two of what is new. A trigger that is told of the `last_job` decides as
    one that has been there since; before the first, time counts from the first request.
    """

    def __init__(
        self,
        config: HotdraftConfig,
        buffer: ReplayBuffer,
        last_job: LastJob | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._trigger = config.distill.trigger
        self._held_out_fraction = config.replay.held_out_fraction
        self._held_out_needed = config.gate.min_requests
        self._buffer = buffer
        self._told = last_job
        self._clock = clock
        self._last_job = None if last_job is None else last_job.ended_at
        self._first_request: float | None = None
        self._read_shards: set[str] = set()
        self._new_requests = self._new_missed = 0
        self._held_out: set[bytes] = set()
        """Held-out prompts, no more than are needed."""
        self._fallen: set[bytes] = set()
        """Likewise those since acceptance fell, while there is a drift."""
        self._recent: deque[tuple[int, int]] = deque(maxlen=self._trigger.drift_requests)
        self._before: deque[tuple[int, int]] = deque(maxlen=LONG_TERM * self._trigger.drift_requests)
        self._read()

    def decide(self) -> Decision:
        """Read what is new in the buffer and say whether a job is due."""
        self._read()
        drift, others = self._drift(), self._reasons()
        reasons = [*drift, *others]
        shortfalls = self._shortfalls(drifts=bool(drift))
        due = not shortfalls and bool(reasons)
        if not reasons:
            shortfalls.append(f"{self._new_missed} of {self._trigger.min_new_rejected} newly missed tokens")
        reason = "; ".join(reasons) if due else "waiting: " + ", ".join(shortfalls)
        possible = self._new_requests > 0 and len(self._held_out) >= self._held_out_needed
        return Decision(due, reason, self._new_requests, self._new_missed, possible)

    def reset(self, *, new_draft: bool = True) -> None:
        """Start counting anew: a job has taken what is there. Without a new draft the past stays its past."""
        self._new_requests = self._new_missed = 0
        self._last_job = self._clock()
        if new_draft:
            self._before.clear()

    def _shortfalls(self, *, drifts: bool) -> list[str]:
        trigger = self._trigger
        # The first requests of a new kind of traffic are what there is to learn from.
        requests_needed = trigger.drift_requests if drifts else trigger.min_new_requests
        found = [
            f"{have} of {need} {what}"
            for have, need, what in (
                (self._new_requests, requests_needed, "new requests"),
                (len(self._held_out), self._held_out_needed, "held-out prompts"),
                (len(self._fallen), DRIFT_HELD_OUT * drifts, "held-out prompts since acceptance fell"),
            )
            if have < need
        ]
        cooled = math.inf if self._last_job is None else self._clock() - self._last_job
        if cooled < trigger.cooldown_seconds:
            found.append(f"{trigger.cooldown_seconds - cooled:.0f} s of cool-down")
        return found

    def _reasons(self) -> list[str]:
        trigger = self._trigger
        found = []
        if self._new_missed >= trigger.min_new_rejected:
            found.append(f"{self._new_missed} newly missed tokens in {self._new_requests} requests")
        began = self._first_request if self._last_job is None else self._last_job
        waited = 0.0 if began is None else self._clock() - began
        if trigger.every_seconds is not None and waited >= trigger.every_seconds:
            found.append(f"{waited:.0f} s since the {'first request' if self._last_job is None else 'last job'}")
        return found

    def _drift(self) -> list[str]:
        """That the newest requests fare worse than those before, by accepted among examined tokens, if so."""
        needed, allowed = self._trigger.drift_requests, self._trigger.drift
        if allowed is None or min(len(self._recent), len(self._before)) < needed:
            return []
        before, recent = (
            sum(accepted for accepted, _ in side) / max(1, sum(examined for _, examined in side))
            for side in (self._before, self._recent)
        )
        if before - recent <= allowed:
            return []
        return [f"acceptance of the newest {needed} requests fell by {before - recent:.3f}"]

    def _read(self) -> None:
        shards = self._buffer.shards()
        for shard in shards:
            if shard not in self._read_shards:
                self._count(shard)
        self._read_shards = set(shards)

    def _count(self, shard: str) -> None:
        columns = ["request_id", "created_at", "prompt_ids", "drafted_ids", "accepted"]
        for row in self._buffer.read(shard, columns).with_format("numpy"):
            prompt_ids = np.asarray(row["prompt_ids"], np.int32)
            if self._first_request is None:
                self._first_request = float(row["created_at"])
            examined = int((row["drafted_ids"] != NOT_DRAFTED).sum())
            if examined:
                if len(self._recent) == self._recent.maxlen:
                    self._before.append(self._recent[0])
                self._recent.append((int(row["accepted"].sum()), examined))
            drifts = bool(self._drift())
            if not drifts:
                self._fallen.clear()
            if is_held_out(prompt_ids, self._held_out_fraction):
                if len(self._held_out) < self._held_out_needed:
                    self._held_out.add(prompt_ids.tobytes())
                if drifts and len(self._fallen) < DRIFT_HELD_OUT:
                    self._fallen.add(prompt_ids.tobytes())
            else:
                self._new_requests += 1
                self._new_missed += int(missed(row["drafted_ids"], row["accepted"]).sum())
            if (
                self._told is not None and row["request_id"] == self._told.request
            ):  # what came up to here is not new
                self._new_requests = self._new_missed = 0
                if self._told.accepted:
                    self._before.clear()
