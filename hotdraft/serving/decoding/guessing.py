"""What is guessed from text for the engine's requests, and the answers that are remembered for it."""

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from hotdraft.pipeline.config.serving import EngineConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.schema import pieces
from hotdraft.serving.proposers.acceptance import AcceptanceEstimate, TrafficEstimate
from hotdraft.serving.proposers.suffixes import Guess, assumed_rates, guess
from hotdraft.serving.proposers.text_memory import TextMemory

logger = logging.getLogger(__name__)

RECALLED = 512
"""Recorded answers that a server begins with."""
MEMORY = 0.98
"""Weight of the past in the acceptance of guesses, of which there are many kinds."""


class Guessing:
    """The engine's thread guesses and remembers."""

    def __init__(self, memory: TextMemory, max_guess: int) -> None:
        self.memory = memory
        self.max_guess = max_guess
        self._acceptance = TrafficEstimate(assumed_rates(), MEMORY)

    @classmethod
    def of(cls, config: EngineConfig) -> "Guessing":
        return cls(TextMemory(config.text_memory_mb << 20), config.max_guess)

    def new_estimate(self, domain: str) -> AcceptanceEstimate:
        """For a request that has yet to begin."""
        return self._acceptance.of_request(domain)

    def guess(self, scope: str, context: np.ndarray, most: int, rates: np.ndarray) -> Guess:
        """Up to `most` tokens after `context` [n] of a request of that scope; `rates` are of kinds of guesses."""
        return guess(context, self.memory.of(scope), min(most, self.max_guess), rates)

    def remember(self, scope: str, answer: np.ndarray) -> None:
        """An answer [n] that others of its scope may be like."""
        self.memory.remember(scope, answer)

    def recall(self, buffer: ReplayBuffer, target_id: str, vocab_size: int) -> None:
        """Remember the target's newest recorded answers, whose owners nobody knows, without those of a salt's.

        None where the buffer cannot be read. `target_id` is empty where it is not known.
        """
        try:
            rows = buffer.newest(RECALLED)
            newest = rows.table(np.flatnonzero(rows.may_be_of(target_id)))
        except OSError as error:
            logger.warning("recorded answers are not guessed from, the replay buffer cannot be read: %s", error)
            return
        for answer in pieces(newest.filter(pc.invert(newest["salted"]))["output_ids"]):
            if len(answer) and answer.max() < vocab_size:  # another model's that nobody knows may have more tokens
                self.remember("", answer)


def matched(token_ids: Sequence[int], came: Sequence[int]) -> int:
    """How many tokens of a guess are those that came."""
    count = 0
    while count < min(len(token_ids), len(came)) and token_ids[count] == came[count]:
        count += 1
    return count
