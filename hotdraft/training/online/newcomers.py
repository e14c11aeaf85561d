"""Requests that came while a job trained, to judge its candidates by. See `judging.unseen` for which count."""

import time
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.training.batches.pools import mix_of
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.judging.gate import effective_prompts
from hotdraft.training.judging.unseen import unlike
from hotdraft.training.online.context import Interruption

POLL_SECONDS = 1.0
ENOUGH = 2
"""Times `gate.min_prompts`, for which a job waits: so few can tell a great gain only."""
KNOWN = 2048
"""Newest requests learned from that newcomers are compared with, or `distill.window_requests` if that is more; what
is older is rehearsed, not taught anew."""
CONSIDERED = 4
"""Newcomers that are looked at, for each that may be taken."""
ROWS_AT_ONCE = 256


class Newcomers:
    def __init__(
        self, buffer: ReplayBuffer, data: ReplayDataModule, last_request: str, config: HotdraftConfig
    ) -> None:
        self._buffer = buffer
        self._data = data
        self._last_request = last_request
        self._config = config

    def wait(
        self, held_out: Sequence[ReplaySample], interruption: Interruption
    ) -> tuple[list[ReplaySample], list[ReplaySample], dict[str, float]]:
        """`held_out` and those that came since the job began, unlike each other and what it learned from, and
        today's mix.

        If there are too few prompts of today's to judge by, waits for more, `gate.wait_seconds` at most. How many
        there are decides on that, and not what they say.
        """
        gate, distill = self._config.gate, self._config.distill
        deadline = time.monotonic() + gate.wait_seconds
        held_out = unlike(held_out, self._taught)
        held = [(sample.prompt_ids, sample.output_ids) for sample in held_out]
        seen = -1
        while True:
            came = self._data.ours(self._buffer.rows().after(self._last_request))
            if len(came) != seen:
                seen = len(came)
                newest = came.select(range(max(0, seen - CONSIDERED * gate.max_requests), seen))
                fresh = unlike(self._data.usable(newest), [*held, *self._taught])[-gate.max_requests :]
                mix = mix_of([*self._data.domains, *newest["domain"]], distill)
                prompts = effective_prompts([sample.domain for sample in (*held_out, *fresh)], mix)
            if prompts >= ENOUGH * gate.min_prompts or time.monotonic() >= deadline:
                return held_out, fresh, mix
            interruption.check("there were requests enough to judge by")
            time.sleep(POLL_SECONDS)

    @cached_property
    def _taught(self) -> list[tuple[np.ndarray, np.ndarray]]:
        rows = self._data.train_rows
        newest = range(max(0, len(rows) - max(KNOWN, self._config.distill.window_requests)), len(rows))
        chunks = (newest[start : start + ROWS_AT_ONCE] for start in range(0, len(newest), ROWS_AT_ONCE))
        return [(row["prompt_ids"], row["output_ids"]) for chunk in chunks for _, row in rows.read(chunk)]
