"""Whether recorded requests are what was served: the draft that drafted them must do as well on them again.

A request whose prompt and answer do not belong together may be true in each of its distributions. But the
draft, asked again, will not propose what was accepted.
"""

from collections.abc import Sequence

import numpy as np

from hotdraft.pipeline.replay.sample import ReplaySample, may_be_same

TOLERANCE = 0.07
"""Acceptance rate that may be missing: serving rounds otherwise."""
MIN_REQUESTS = 8


class UnlikeServedError(ValueError):
    """Held-out requests that no adapter can be judged by."""


def checkable(
    samples: Sequence[ReplaySample], version: int, draft_id: str = "", since: float = 0.0
) -> list[ReplaySample]:
    """Those that tell whether a version of the draft `draft_id` does as well on them as when it served them.

    Other drafts, and registries, have versions of that number too: what is known to be of another draft, or is from
    before it was made, at Unix time `since`, tells nothing.
    """
    return [
        sample
        for sample in samples
        if sample.temperature == 0
        and may_be_same(sample.draft_id, draft_id)
        and sample.created_at >= since
        and _drafted_by(sample, version).any()
    ]


def check_served(samples: Sequence[ReplaySample], chances: Sequence[np.ndarray], version: int) -> None:
    """Raise `UnlikeServedError` if less of `samples` is accepted now than was when draft `version` was served.

    `chances` [N] of each sample are that draft's now, see `scoring.evaluate`. Only greedy requests tell, as the
    chances of the others are lower bounds, and only if there are enough.
    """
    served, again = [], []
    for sample, chance in zip(samples, chances, strict=True):
        count = len(chance)
        drafted = _drafted_by(sample, version)
        if sample.temperature == 0 and drafted[:count].any():
            served.append(sample.accepted[:count][drafted[:count]].mean())
            again.append(chance[drafted[:count]].mean())
    if len(served) >= MIN_REQUESTS and np.mean(again) < np.mean(served) - TOLERANCE:
        raise UnlikeServedError(
            f"held-out requests are not what was served: of the tokens drafted by version {version} "
            f"{np.mean(served):.0%} were accepted, and {np.mean(again):.0%} would be now"
        )


def _drafted_by(sample: ReplaySample, version: int) -> np.ndarray:
    """bool [N]: positions that draft `version` was asked for."""
    return (sample.drafted_ids >= 0) & (sample.draft_versions == version)
