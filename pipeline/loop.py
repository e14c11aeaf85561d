"""When the draft should learn: the trigger of the self-improvement loop.

A job is due once enough drafted tokens were refused since the last one. Moderately lazy is best:
a deployment after every step costs more throughput than it gains (Aurora, 2026).
"""

from dataclasses import dataclass

from datasets import Dataset

from pipeline.config import HotdraftConfig
from pipeline.replay import ReplayBuffer, is_held_out

FIRST_READ = 64
"""Newest requests read first when looking for what is new; doubled until nothing new is left out."""


@dataclass(frozen=True)
class Decision:
    due: bool
    reason: str
    new_requests: int
    """Training requests recorded since the last job."""
    new_rejected: int
    """Drafted tokens refused in them."""


class DistillTrigger:
    """Counts what the replay buffer gained since the last job, reading each new shard about once.

    Held-out requests teach nothing and are not counted, but no job is due before the gate has its
    `min_requests` of them. `last_request` is the newest request that the last job saw.
    """

    def __init__(self, config: HotdraftConfig, buffer: ReplayBuffer, last_request: str | None = None) -> None:
        self._trigger = config.distill.trigger
        self._held_out_fraction = config.replay.held_out_fraction
        self._held_out_needed = config.gate.min_requests
        self._buffer = buffer
        self._shards: list[str] = []
        self._last_read: str | None = None
        self._held_out = self._new_requests = self._new_rejected = 0
        self._read(until=None, count_from=last_request)

    def decide(self) -> Decision:
        """Read what is new in the buffer and say whether a job is due."""
        self._read(until=self._last_read, count_from=None)
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

    def _read(self, until: str | None, count_from: str | None) -> None:
        """Count the requests after `until`; those up to `count_from` only where they are held out."""
        shards = self._buffer.shards()
        if shards == self._shards:
            return
        rows = self._rows_after(until)
        ids = list(rows["request_id"])
        seen = ids.index(count_from) + 1 if count_from in ids else 0
        for index, row in enumerate(rows.with_format("numpy")):
            if is_held_out(str(row["request_id"]), self._held_out_fraction):
                self._held_out += 1
            elif index >= seen:
                self._new_requests += 1
                self._new_rejected += int(((row["drafted_ids"] >= 0) & ~row["accepted"]).sum())
        self._shards = shards
        self._last_read = ids[-1] if ids else until

    def _rows_after(self, request_id: str | None) -> Dataset:
        newest = FIRST_READ if request_id is not None else None
        while True:
            rows = self._buffer.load(newest).select_columns(["request_id", "drafted_ids", "accepted"])
            ids = list(rows["request_id"])
            if request_id in ids:
                return rows.select(range(ids.index(request_id) + 1, len(ids)))
            if newest is None or len(ids) < newest:
                return rows
            newest *= 2
