"""How long a pre-distillation takes at the speed that a few of its steps had."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from hotdraft.training.planning.memory_plan import MemoryPlan


@dataclass(frozen=True)
class Speed:
    answer_tokens_per_second: float
    """Output tokens of the target, all slots together."""
    train_tokens_per_second: float
    """Of one device."""


@dataclass(frozen=True)
class Hours:
    answering: float
    """If every answer is as long as it may be."""
    training: float

    @property
    def total(self) -> float:
        return self.answering + self.training


def hours(plan: MemoryPlan, speed: Speed) -> Hours:
    """Hours to finish `plan` from the start."""
    training = plan.run.train_tokens / speed.train_tokens_per_second
    limit = plan.run.settings.max_seconds
    return Hours(
        plan.run.answer_tokens / speed.answer_tokens_per_second / 3600,
        (training if limit is None else min(training, limit)) / 3600,
    )


def tokens_per_second(
    step: Callable[[], int], *, steps: int = 3, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Speed of `step`, which returns its tokens when they are done: over `steps` calls after one that warms up."""
    step()
    started = clock()
    tokens = sum(step() for _ in range(steps))
    return tokens / (clock() - started)
