"""What filters keep of a large vocabulary, without sorting it where a few hundred tokens decide."""

from typing import NamedTuple

import torch
from torch import Tensor

LOOKS = (256, 2048)
"""Likeliest tokens that are looked at first, and where those do not decide; then all."""

GROUP = 8
"""Tokens whose maximum says whether any of them can be among the likeliest."""


class FilterCut(NamedTuple):
    """Which tokens of R rows are kept: logits above `floor`, and at it those up to `last_id`."""

    floor: Tensor
    """float32 [R, 1]."""
    last_id: Tensor
    """int64 [R, 1]."""
    total: Tensor
    """float32 [R, 1]: log-sum-exp of the kept logits over their temperature."""


class Filters(NamedTuple):
    """Of R rows, each [R, 1] but for the last. They apply in this order, each to the renormalised rest."""

    temperature: Tensor
    top_k: Tensor
    """The likeliest that are kept, 0 keeps all."""
    top_p: Tensor
    """Of these the fewest that hold this mass are kept,"""
    min_p: Tensor
    """and of these all of at least this times the likeliest's probability."""
    cutoffs: Tensor | None = None
    """[R, 2]: of what is left then all of at least epsilon, and of these all of at least min(eta, sqrt(eta) e^-H),
    where H is their entropy in nats (Hewitt et al., 2022, as transformers has it). 0 keeps all."""

    def at(self, rows: Tensor) -> "Filters":
        cutoffs = None if self.cutoffs is None else self.cutoffs[rows]
        return Filters(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], cutoffs)


def is_dropped(logits: Tensor, token_ids: Tensor, floor: Tensor, last_id: Tensor) -> Tensor:
    """Whether a `FilterCut` drops tokens of these logits; all shapes broadcast."""
    return (logits < floor) | ((logits == floor) & (token_ids > last_id))


def cut(logits: Tensor, filters: Filters, total: Tensor | None) -> FilterCut:
    """What the filters keep of float32 logits [R, V]: one token at least.

    Of equal logits the smaller token id is the likelier. `total` [R, 1] is the log-sum-exp of logits / temperature,
    needed where a row has top_p or cutoffs without top_k.
    """
    # on a GPU a sort is cheap, and waiting for whether a part of it decides is not
    return _cut(logits, filters, total, LOOKS if logits.device.type == "cpu" else ())


def _cut(logits: Tensor, filters: Filters, total: Tensor | None, looks: tuple[int, ...]) -> FilterCut:
    temperature, top_k, top_p, min_p, cutoffs = filters
    vocabulary = logits.shape[-1]
    partial = len(looks) > 0 and looks[0] < vocabulary
    if partial:
        values, token_ids = _largest(logits, looks[0])
    else:
        values, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    scaled = values / temperature
    allowed = torch.where(top_k > 0, top_k, vocabulary)
    dropped = torch.arange(values.shape[-1], device=logits.device) >= allowed
    mass = scaled.masked_fill(dropped, -torch.inf).logsumexp(-1, keepdim=True)
    knows_mass = allowed <= values.shape[-1]
    if total is not None:
        mass = torch.where(allowed >= vocabulary, total, mass)
        knows_mass |= allowed >= vocabulary
    probs = (scaled - mass).exp()
    dropped |= ((probs.cumsum(-1) - probs >= top_p) & (top_p < 1)) | (probs < min_p * probs[:, :1])
    dropped[:, 0] = False
    decided = knows_mass | (top_p >= 1)
    if cutoffs is not None:
        dropped, knew = _cut_off(scaled, dropped, cutoffs, mass, knows_mass & (top_p >= 1) & (min_p <= 0))
        decided = decided & knew
    last = (~dropped).sum(-1, keepdim=True) - 1
    kept = FilterCut(
        floor=values.gather(-1, last),
        last_id=token_ids.gather(-1, last),
        total=scaled.masked_fill(dropped, -torch.inf).logsumexp(-1, keepdim=True),
    )
    if partial:
        # the last kept must lie above all that were not looked at, and top-p have known the mass that top-k left
        rest = (~(decided & (kept.floor > values[:, -1:]))).squeeze(-1).nonzero().squeeze(-1)
        if len(rest):
            again = _cut(logits[rest], filters.at(rest), None if total is None else total[rest], looks[1:])
            for found, better in zip(kept, again, strict=True):
                found[rest] = better
    return kept


def _cut_off(
    scaled: Tensor, dropped: Tensor, cutoffs: Tensor, mass: Tensor, known: Tensor
) -> tuple[Tensor, Tensor]:
    """What is dropped of the likeliest tokens [R, W] with the cutoffs, and whether enough was seen [R, 1].

    `mass` [R, 1] is that of all tokens which the filters before leave where these do not end among the W, if it is
    `known`.
    """
    epsilon, eta = cutoffs.split(1, -1)
    ended = dropped[:, -1:]
    left = scaled.masked_fill(dropped, -torch.inf)
    mass = torch.where(ended, left.logsumexp(-1, keepdim=True), mass)
    kept = left.masked_fill(_but_first((left - mass).exp() < epsilon), -torch.inf)
    log_probs = kept.log_softmax(-1)
    probs = log_probs.exp()
    entropy = torch.special.entr(probs).sum(-1, keepdim=True)
    cut = _but_first(probs < torch.minimum(eta, eta.sqrt() * (-entropy).exp())) | kept.isneginf()
    whole = kept[:, -1:].isneginf()
    return cut, (ended | known) & (whole | (eta == 0)) | ((epsilon == 0) & (eta == 0))


def _but_first(dropped: Tensor) -> Tensor:
    dropped[:, 0] = False
    return dropped


def _largest(logits: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The `size` largest of each row and their token ids, likeliest first, equal ones by id."""
    token_ids = _unordered(logits, size).sort(-1).values
    values, order = logits.gather(-1, token_ids).sort(dim=-1, descending=True, stable=True)
    return values, token_ids.gather(-1, order)


def _unordered(logits: Tensor, size: int) -> Tensor:
    """Token ids [R, size]. They lie in as many groups of tokens, those of the largest maxima."""
    groups, rest = divmod(logits.shape[-1], GROUP)
    if rest or groups < 2 * size:
        return logits.topk(size, -1, sorted=False).indices
    likely = logits.unflatten(-1, (GROUP, groups)).amax(1).topk(size, -1, sorted=False).indices
    token_ids = (likely[..., None] + groups * torch.arange(GROUP, device=logits.device)).flatten(1)
    return token_ids.gather(-1, logits.gather(-1, token_ids).topk(size, -1, sorted=False).indices)
