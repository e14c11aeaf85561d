"""Judging what greedy rows propose to a native target, in plain numbers: a token is accepted if it is likeliest.

It does what `verify` and `follow` do of tensors, of which each operation takes longer than all of this.
"""

from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch

from hotdraft.pipeline.replay.sample import NOT_DRAFTED
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.models.slots import Slots
from hotdraft.serving.models.track import Track
from hotdraft.serving.proposers.row_proposal import RowProposal
from hotdraft.serving.sampling.target_log import TargetLog, pack, unpack


class _Judged(NamedTuple):
    """What the target makes of a row's proposal."""

    token_ids: list[int]
    """Those that come: accepted ones, the one that follows, and another if that is an alternative."""
    num_accepted: int
    came: int
    """Which alternative that is; -1: none."""
    columns: list[int]
    """Where among the tokens that the target read each of them was found."""
    sound: bool


def judge_greedily(
    target: Track,
    slots: Slots,
    proposals: Sequence[RowProposal],
    vocab_size: int,
    *,
    top_k: int,
    with_tokens: bool,
) -> Round:
    """Verify in one forward what is proposed for the first rows, and commit in `slots` what it brings.

    The `top_k` likeliest tokens are logged, nothing if that is 0; `with_tokens` is that of `unpack`.
    """
    lengths = slots.lengths[: len(proposals)]
    runner = target.runner
    assert isinstance(runner, NativeRunner), "a native target's rounds are judged in plain numbers"
    logits = _read(runner, slots, proposals)[..., :vocab_size]
    judged = [_judge(proposal, of_row) for proposal, of_row in zip(proposals, logits, strict=True)]
    if any(row.came >= 0 for row in judged):
        # what was made of a token belongs where the token is
        ends = [length + row.num_accepted for length, row in zip(lengths, judged, strict=True)]
        sources = [
            length - 1 + row.columns[-1] if row.came >= 0 else end
            for length, end, row in zip(lengths, ends, judged, strict=True)
        ]
        target.move_keys(torch.tensor(sources), torch.tensor(ends))
    slots.commit([row.token_ids for row in judged])
    k = max(len(proposal.token_ids) for proposal in proposals)
    return Round(
        token_ids=_padded([row.token_ids for row in judged], k + 1, 0),
        num_accepted=np.array([row.num_accepted for row in judged], np.int32),
        came=np.array([row.came for row in judged], np.int32),
        num_alternatives=np.array([len(proposal.alternatives) for proposal in proposals], np.int32),
        proposed_ids=_padded([proposal.token_ids for proposal in proposals], k + 1, NOT_DRAFTED),
        target_log=_log(logits, judged, top_k, with_tokens=with_tokens) if top_k else None,
        target_is_sound=np.array([row.sound for row in judged]),
        draft_is_sound=np.array([proposal.sound for proposal in proposals]),
        num_guessed=np.array([proposal.num_guessed for proposal in proposals]),
    )


def _read(runner: NativeRunner, slots: Slots, proposals: Sequence[RowProposal]) -> np.ndarray:
    """Logits [B, Q, V] of each row's last token, those proposed behind it, and the alternatives: a `TokenTree`."""
    fed, positions = [], []
    for row, (token_ids, _, alternatives, _) in enumerate(proposals):
        last = slots.lengths[row] - 1
        fed.append([int(slots.held(row)[-1]), *token_ids, *(one.token_id for one in alternatives)])
        beside = [last + 1 + one.position for one in alternatives]
        positions.append([*range(last, last + 1 + len(token_ids)), *beside])
    counts = [len(row) for row in fed]
    width, keys = max(counts), None
    if any(proposal.alternatives for proposal in proposals):
        keys = np.array([[*range(first, first + width)] for first, *_ in positions])
    read, at = (_padded(part, width, 0, np.int64) for part in (fed, positions))
    return runner.read(read, at, np.array(counts, np.int32), keys)


def _judge(proposal: RowProposal, logits: np.ndarray) -> _Judged:
    """By logits [Q, V], of which those of the tokens that the row has matter."""
    proposed, alternatives = proposal.token_ids, proposal.alternatives
    logits = logits[: 1 + len(proposed) + len(alternatives)]
    likeliest = logits.argmax(-1).tolist()  # the first NaN, if there is one
    if not all(isfinite(logits.item(place, token)) for place, token in enumerate(likeliest)):
        return _Judged([0], 0, -1, [0], sound=False)
    accepted = 0
    while accepted < len(proposed) and likeliest[accepted] == proposed[accepted]:
        accepted += 1
    following = (accepted, likeliest[accepted])
    came = alternatives.index(following) if following in alternatives else -1
    columns = [*range(accepted + 1), *([1 + len(proposed) + came] if came >= 0 else [])]
    return _Judged([likeliest[column] for column in columns], accepted, came, columns, sound=True)


def _log(logits: np.ndarray, judged: Sequence[_Judged], top_k: int, *, with_tokens: bool) -> TargetLog:
    """At the positions of the tokens that came, some number where a row has fewer."""
    width = max(len(row.columns) for row in judged)
    kept = torch.from_numpy(logits[:, :width])
    if any(row.came >= 0 for row in judged):
        columns = torch.from_numpy(_padded([row.columns for row in judged], width, 0)).long()
        kept = torch.from_numpy(logits)[torch.arange(len(judged))[:, None], columns]
    token_ids = torch.from_numpy(_padded([row.token_ids for row in judged], width, 0)).long()
    return unpack(pack(kept, top_k, token_ids if with_tokens else None).numpy(), with_tokens=with_tokens)


def _padded(rows: Sequence[Sequence[int]], width: int, filler: int, dtype: type = np.int32) -> np.ndarray:
    return np.array([[*row, *[filler] * (width - len(row))] for row in rows], dtype)
