"""When the draft should learn: the trigger of the self-improvement loop.

A job is due once the draft missed enough tokens since the last one. Moderately lazy is best: a
deployment after every step costs more throughput than it gains (Aurora, 2026).
"""

from dataclasses import dataclass

import numpy as np

from pipeline.config import HotdraftConfig
from pipeline.records import NOT_DRAFTED
from pipeline.replay import ReplayBuffer, is_held_out


@dataclass(frozen=True)
class Decision:
    due: bool
    reason: str
    new_requests: int
    """Training requests recorded since the last job."""
    new_missed: int
    """Output positions of theirs that the draft missed; see `missed`."""


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

    Held-out requests teach nothing and are not counted, but no job is due before the gate has its
    `min_requests` of them. `last_request` is the newest request that the last job saw.
    """

    def __init__(self, config: HotdraftConfig, buffer: ReplayBuffer, last_request: str | None = None) -> None:
        self._trigger = config.distill.trigger
        self._held_out_fraction = config.replay.held_out_fraction
        self._held_out_needed = config.gate.min_requests
        self._buffer = buffer
        self._last_request = last_request
        self._read_shards: set[str] = set()
        self._held_out = self._new_requests = self._new_missed = 0
        self._read()

    def decide(self) -> Decision:
        """Read what is new in the buffer and say whether a job is due."""
        self._read()
        trigger = self._trigger
        shortfalls = [
            f"{have} of {need} {what}"
            for have, need, what in (
                (self._new_requests, trigger.min_new_requests, "new requests"),
                (self._new_missed, trigger.min_new_rejected, "newly missed tokens"),
                (self._held_out, self._held_out_needed, "held-out requests"),
            )
            if have < need
        ]
        found = f"{self._new_missed} newly missed tokens in {self._new_requests} requests"
        reason = "waiting: " + ", ".join(shortfalls) if shortfalls else found
        return Decision(not shortfalls, reason, self._new_requests, self._new_missed)

    def reset(self) -> None:
        """Start counting anew: a job has taken what is there."""
        self._new_requests = self._new_missed = 0

    def _read(self) -> None:
        shards = self._buffer.shards()
        for shard in shards:
            if shard not in self._read_shards:
                self._count(shard)
        self._read_shards = set(shards)

    def _count(self, shard: str) -> None:
        rows = self._buffer.read(shard).select_columns(["request_id", "drafted_ids", "accepted"])
        for row in rows.with_format("numpy"):
            request_id = str(row["request_id"])
            if is_held_out(request_id, self._held_out_fraction):
                self._held_out += 1
            else:
                self._new_requests += 1
                self._new_missed += int(missed(row["drafted_ids"], row["accepted"]).sum())
            if request_id == self._last_request:  # what came up to here is not new
                self.reset()
