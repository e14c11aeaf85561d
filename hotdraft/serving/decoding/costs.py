"""What a round costs on this machine, by rows and by proposed tokens."""

import bisect
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TypeVar

import numpy as np

from hotdraft.pipeline.system.transfer import synchronize
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.graphs.recurring import RECURS
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.proposers.plan import ProposalPlan
from hotdraft.serving.sampling.logits import SamplingBatch

T = TypeVar("T", float, np.ndarray)

CONTEXT = 64
"""Tokens that each row holds while costs are measured."""
REPEATS = 3


class RoundCosts:
    """Seconds that verifying proposals of t tokens in each of `rows` rows takes, and one draft step.

    `verifying[rows][t]` and `draft_steps[rows]` hold what was measured; between and beyond those numbers
    of rows lies a straight line.
    """

    def __init__(self, verifying: dict[int, list[float]], draft_steps: dict[int, float]) -> None:
        self._measured = sorted(verifying)
        self._verifying = {rows: np.array(seconds) for rows, seconds in verifying.items()}
        self._draft_steps = draft_steps

    @property
    def most(self) -> int:
        """Largest t that was measured."""
        return len(self._verifying[self._measured[0]]) - 1

    def verify_seconds(self, rows: float) -> np.ndarray:
        """By tokens, [most + 1]."""
        return self._at(rows, self._verifying.__getitem__)

    def draft_step_seconds(self, rows: float) -> float:
        return self._at(rows, self._draft_steps.__getitem__)

    def round_seconds(self, rows: float, k: int) -> float:
        """Of a round of k drafted tokens."""
        return float(self.verify_seconds(rows)[k]) + k * self.draft_step_seconds(rows)

    def cost_ratio(self, rows: int) -> float:
        """c of Leviathan et al. (2023): a draft step over a round that drafts nothing."""
        return self.draft_step_seconds(rows) / self.round_seconds(rows, 0)

    def _at(self, rows: float, value: Callable[[int], T]) -> T:
        above = min(bisect.bisect_left(self._measured, rows), len(self._measured) - 1)
        high, low = self._measured[above], self._measured[max(above - 1, 0)]
        if high == low:
            return value(high)
        return value(low) + (value(high) - value(low)) * (rows - low) / (high - low)


def numbers_to_measure(most: int) -> list[int]:
    """0, 1, 2, 4, … and `most`: between them costs lie about on a straight line."""
    return sorted({0, most, *(2**power for power in range(most.bit_length()) if 2**power < most)})


def rows_to_measure(num_slots: int) -> list[int]:
    """1, 2, 4, … and `num_slots`."""
    return numbers_to_measure(num_slots)[1:]


def profile_costs(decoder: SpeculativeDecoder, rows: Sequence[int], most: int) -> RoundCosts:
    """Measure greedy rounds of up to `most` proposed tokens, medians of a few; only while the slots are free.

    Their graphs are recorded first, where there are to be any.
    """
    if decoder.round_graphs is not None:
        decoder.round_graphs.record()
    steps = min(most, decoder.max_k)
    context = max(1, min(CONTEXT, decoder.max_model_len - (most + 1)))
    for row in range(max(rows)):
        decoder.load(row, [(7 * row + position) % decoder.vocab_size for position in range(context)])
        while not decoder.prefill(row, context, with_proposer=steps > 0):
            pass

    warm_ups = RECURS + 1 if decoder.graphed else 1

    def seconds(count: int, works: Sequence[Callable[[], object]]) -> list[float]:
        """By turns: what slows the machine for a while slows all of them."""
        times: list[list[float]] = [[] for _ in works]
        for _ in range(warm_ups + REPEATS):
            for taken, work in zip(times, works, strict=True):
                for row in range(count):
                    decoder.rewind(row, context)
                started = time.perf_counter()
                work()
                synchronize(decoder.device)
                taken.append(time.perf_counter() - started)
        return [median(taken[warm_ups:]) for taken in times]

    verifying, draft_steps = {}, {}
    numbers = numbers_to_measure(most)
    drafted = range(1 if decoder.graphed else max(steps, 1), steps + 1)  # each k is a graph of its own
    for count in rows:
        sampling = SamplingBatch.of([SamplingParams(temperature=0)] * count, range(count), decoder.device)
        guesses = [ProposalPlan([(0,) * tokens] * count, [0] * count) for tokens in numbers]
        rounds = [partial(decoder.round, plan, sampling, log=False) for plan in guesses]
        drafts = [partial(decoder.propose, ProposalPlan.uniform(count, k), sampling) for k in drafted]
        measured = seconds(count, [*rounds, *drafts])
        verifying[count] = np.interp(range(most + 1), numbers, measured[: len(numbers)]).tolist()
        draft_steps[count] = measured[-1] / steps if steps else 0.0
    return RoundCosts(verifying, draft_steps)
