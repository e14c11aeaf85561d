"""Rounds of one row, as a decoder might report them."""

import numpy as np

from serving.decoder import Round, TargetLog


def a_round(token_ids: list[int], accepted: int | None = None, log: bool = False) -> Round:
    """A round of one row that commits all of `token_ids`, or the first `accepted + 1`."""
    length = len(token_ids)
    drafted = [*token_ids[:-1], -1] if accepted is None else [9] * (length - 1) + [-1]
    top = np.tile(np.arange(4, dtype=np.int32), (1, length, 1))
    return Round(
        token_ids=np.array([token_ids], np.int32),
        num_accepted=np.array([length - 1 if accepted is None else accepted], np.int32),
        drafted_ids=np.array([drafted], np.int32),
        target_log=TargetLog(top, top.astype(np.float16), np.zeros((1, length), np.float32)) if log else None,
    )
