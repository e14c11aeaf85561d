"""Speculation over answers that are known: the rounds that a server would have gone through, without serving.

A draft that is asked after a prefix of the target's own answer proposes what it would propose there when
served, since a round ends at its first rejection. So acceptance by position tells all that rounds do.
"""

from dataclasses import dataclass, replace

import numpy as np

from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample

UNKNOWN_TOKEN = 0
"""Stands in the record for a rejected token: which one it was makes no difference to training."""


@dataclass(frozen=True)
class Played:
    """A request as a server would have recorded it."""

    sample: ReplaySample
    rounds: int
    drafted: int
    """Positions after a rejection included."""
    accepted: int


def play(
    sample: ReplaySample, chances: np.ndarray, *, k: int, draft_version: int, generator: np.random.Generator
) -> Played:
    """Rounds of `k` drafted tokens over `sample.output_ids`.

    `chances` [N] is the chance that a token drafted at each position is accepted; at temperature 0 it is 0 or 1.
    """
    length = len(sample.output_ids)
    given = generator.random(length) < chances
    drafted = np.zeros(length, bool)
    rounds = drafted_count = position = 0
    while position < length:
        end = min(position + k, length - 1)  # the round's own token comes after what is drafted
        missed = np.flatnonzero(~given[position:end])
        last = position + missed[0] if len(missed) else end
        drafted[position : min(last + 1, end)] = True
        rounds += 1
        drafted_count += int(end - position)
        position = int(last) + 1
    accepted = drafted & given
    record = replace(
        sample,
        drafted_ids=np.where(drafted, np.where(accepted, sample.output_ids, UNKNOWN_TOKEN), NOT_DRAFTED).astype(
            np.int32
        ),
        accepted=accepted,
        draft_versions=np.full(length, draft_version, np.int32),
    )
    return Played(record, rounds, drafted_count, int(accepted.sum()))
