"""What a round proposes and what it brings, free of how it is run."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from pipeline.records import NOT_DRAFTED
from serving.target_log import TargetLog, unpack


@dataclass(frozen=True)
class Proposal:
    """What the draft proposes for B rows."""

    token_ids: Tensor
    """int64 [B, k]."""
    probs: Tensor | None
    """float32 [B, k, V]: the distributions they were drawn from; None if every row is greedy."""


@dataclass(frozen=True)
class Round:
    """What one round did to B rows, on the host. Row b's new tokens are `token_ids[b, :num_accepted[b] + 1]`."""

    token_ids: np.ndarray
    """int32 [B, k+1]."""
    num_accepted: np.ndarray
    """int32 [B]."""
    drafted_ids: np.ndarray
    """int32 [B, k+1]; the last column is `NOT_DRAFTED`."""
    target_log: TargetLog | None
    """At every position that some row keeps, at least."""

    @classmethod
    def of(cls, columns: np.ndarray, k: int, logged: int, *, with_tokens: bool) -> "Round":
        """From int32 columns: the accepted, k+1 new ids, k drafted ids, and `logged` positions of a packed log.

        `with_tokens` is that of `unpack`.
        """
        num_accepted, token_ids, drafted_ids, packed = np.split(columns, [1, k + 2, 2 * k + 2], axis=1)
        log = unpack(packed.reshape(len(columns), logged, -1), with_tokens=with_tokens) if logged else None
        return cls(
            token_ids=token_ids,
            num_accepted=num_accepted[:, 0],
            drafted_ids=np.pad(drafted_ids, ((0, 0), (0, 1)), constant_values=NOT_DRAFTED),
            target_log=log,
        )
