"""When the draft should learn: the trigger of the self-improvement loop.

A job is due once enough drafted tokens were refused since the last one. Moderately lazy is best:
a deployment after every step costs more throughput than it gains (Aurora, 2026).
"""

from dataclasses import dataclass

from pipeline.config import HotdraftConfig
from pipeline.replay import ReplayBuffer, is_held_out


@dataclass(frozen=True)
class Decision:
    due: bool
    reason: str
    new_requests: int
    """Training requests recorded since the last job."""
    new_rejected: int
    """Drafted tokens refused in them."""


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
        self._held_out = self._new_requests = self._new_rejected = 0
        self._read()

    def decide(self) -> Decision:
        """Read what is new in the buffer and say whether a job is due."""
        self._read()
        trigger = self._trigger
        shortfalls = [
            f"{have} of {need} {what}"
            for have, need, what in (
                (self._new_requests, trigger.min_new_requests, "new requests"),
                (self._new_rejected, trigger.min_new_rejected, "new rejected tokens"),
                (self._held_out, self._held_out_needed, "held-out requests"),
            )
            if have < need
        ]
        found = f"{self._new_rejected} new rejected tokens in {self._new_requests} requests"
        reason = "waiting: " + ", ".join(shortfalls) if shortfalls else found
        return Decision(not shortfalls, reason, self._new_requests, self._new_rejected)

    def reset(self) -> None:
        """Start counting anew: a job has taken what is there."""
        self._new_requests = self._new_rejected = 0

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
                self._new_rejected += int(((row["drafted_ids"] >= 0) & ~row["accepted"]).sum())
            if request_id == self._last_request:  # what came up to here is not new
                self.reset()
