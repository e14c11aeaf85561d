"""What a round proposes and what it brings, free of how it is run."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hotdraft.pipeline.replay.sample import NOT_DRAFTED
from hotdraft.serving.sampling.target_log import TargetLog, unpack


class RoundSeconds(NamedTuple):
    """What a round took."""

    proposing: float | None
    """None where a device was still at it when verifying began."""
    verifying: float
    caught_up: bool = False
    """Whether the proposer read what it had missed of a row as well, which is no cost of what it proposed."""

    @property
    def total(self) -> float:
        return (self.proposing or 0.0) + self.verifying


UNTIMED = RoundSeconds(0.0, 0.0)


@dataclass
class Round:
    """What one round did to B rows, on the host. Row b's new tokens are `token_ids[b, :num_new[b]]`."""

    token_ids: np.ndarray
    """int32 [B, k+1]."""
    num_accepted: np.ndarray
    """int32 [B]."""
    came: np.ndarray
    """int32 [B]: which alternative followed the accepted tokens, and gave another one; -1: none."""
    num_alternatives: np.ndarray
    """int32 [B]: those that the target read."""
    proposed_ids: np.ndarray
    """int32 [B, k+1], `NOT_DRAFTED` where nothing was, as in the last column."""
    target_log: TargetLog | None
    """At every position that some row keeps, at least."""
    target_is_sound: np.ndarray
    """bool [B]: whether the target's logits were numbers; a row of which they were not has no new tokens."""
    draft_is_sound: np.ndarray
    """bool [B]: the same of the proposer's; where not, any token was drafted."""
    num_guessed: np.ndarray
    """int64 [B]: of the proposed tokens the first ones, which no model proposed."""
    seconds: RoundSeconds = UNTIMED

    @cached_property
    def num_new(self) -> np.ndarray:
        """int32 [B]."""
        return self.num_accepted + 1 + (self.came >= 0)

    @cached_property
    def num_proposed(self) -> np.ndarray:
        """int64 [B]."""
        return (self.proposed_ids != NOT_DRAFTED).sum(1)

    @classmethod
    def of(
        cls, columns: np.ndarray, k: int, logged: int, *, with_tokens: bool, with_alternatives: bool = False
    ) -> "Round":
        """From int32 columns: are target and draft sound, the accepted, k+1 new ids, k proposed ids, a packed log.

        Before the log, if there are any, which alternative came and how many there were. The log is of `logged`
        positions; `with_tokens` is that of `unpack`.
        """
        ends = [2, 3, k + 4, 2 * k + 4, 2 * k + 4 + 2 * with_alternatives]
        sound, num_accepted, token_ids, proposed_ids, told, packed = np.split(columns, ends, axis=1)
        none = np.full((len(columns), 2), (-1, 0), columns.dtype)
        came, num_alternatives = (told if with_alternatives else none).T
        log = unpack(packed.reshape(len(columns), logged, -1), with_tokens=with_tokens) if logged else None
        return cls(
            token_ids=token_ids,
            num_accepted=num_accepted[:, 0],
            came=came,
            num_alternatives=num_alternatives,
            proposed_ids=np.concatenate([proposed_ids, np.full_like(num_accepted, NOT_DRAFTED)], 1),
            target_log=log,
            target_is_sound=sound[:, 0] != 0,
            draft_is_sound=sound[:, 1] != 0,
            num_guessed=np.zeros(len(columns), np.int64),
        )
