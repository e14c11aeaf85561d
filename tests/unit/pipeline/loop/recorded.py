"""Requests as they are recorded, for triggers to count."""

import numpy as np

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import is_held_out
from hotdraft.pipeline.replay.sample import ReplaySample

FRACTION = 0.2


def samples(start: int, count: int, rejected: int = 3) -> list[ReplaySample]:
    accepted = np.arange(8) >= rejected
    return [
        ReplaySample(
            request_id=f"r{index}", created_at=float(index), domain="d", temperature=0.0,
            prompt_ids=np.array([1, index], np.int32), output_ids=np.ones(8, np.int32),
            target_top_ids=np.zeros((8, 2), np.int32), target_top_logprobs=np.zeros((8, 2), np.float16),
            target_tail_logprob=np.zeros(8, np.float32), drafted_ids=np.ones(8, np.int32),
            accepted=accepted, draft_versions=np.zeros(8, np.int32),
        )
        for index in range(start, start + count)
    ]  # fmt: skip


def trained_on(first: int, last: int) -> int:
    return sum(not is_held_out([1, index], FRACTION) for index in range(first, last))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def changed(config: HotdraftConfig, **trigger: object) -> HotdraftConfig:
    section = config.distill.trigger.model_copy(update=trigger)
    return config.model_copy(update={"distill": config.distill.model_copy(update={"trigger": section})})
