"""Rounds of one row, as a decoder might report them."""

import numpy as np

from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.sampling.target_log import TargetLog


def a_round(
    token_ids: list[int], accepted: int | None = None, log: bool = False, guessed: int = 0, came: int = -1
) -> Round:
    """A round of one row that commits all of `token_ids`, or the first `accepted + 1`, one more if some alternative
    came.

    Its log has the tokens 0..3, of log-probs -1..-4, and for the tokens that came less by the position.
    """
    length = len(token_ids)
    drafted = [*token_ids[:-1], -1] if accepted is None else [9] * (length - 1) + [-1]
    top_ids = np.tile(np.arange(4, dtype=np.int32), (1, length, 1))
    target_log = TargetLog(
        top_ids=top_ids,
        top_logprobs=-1 - top_ids.astype(np.float32),
        tail_logprob=np.zeros((1, length), np.float32),
        token_logprobs=-5 - np.arange(length, dtype=np.float32)[None],
    )
    return Round(
        token_ids=np.array([token_ids], np.int32),
        num_accepted=np.array([length - 1 if accepted is None else accepted], np.int32),
        came=np.array([came]),
        num_alternatives=np.array([came + 1]),
        proposed_ids=np.array([drafted], np.int32),
        target_log=target_log if log else None,
        target_is_sound=np.array([True]),
        draft_is_sound=np.array([True]),
        num_guessed=np.array([guessed]),
    )
