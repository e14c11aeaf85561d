"""One draw for two models: a race between tokens on noise that belongs to the request.

Token x arrives at E_x / probs[x], where the E_x are independent and exponential; the first to arrive is
distributed as `probs`. E_x is a function of request seed, position and token id alone, so that two models
which share it mostly choose the same token, and neither's choice depends on the other: "drafter-invariant
speculative decoding" (Daliri, Musco and Suresh, 2025). They agree with a chance between (1 - d) / (1 + d) and
1 - d, where d is their total variation distance.

Noise for a whole vocabulary would cost as much as a small model. Tokens are therefore grouped by id. The first
arrival of a group of n is exponential with rate n, each of its members is as likely to be it, and the others
come after it by times that are exponential again, as the exponential distribution has no memory. So a group's
largest logit and first arrival bound what its tokens can reach, and few groups need a look.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hotdraft.serving.sampling.filters import is_dropped
from hotdraft.serving.sampling.noise import NoiseStream, exponential, random_bits

GROUP = 32
"""Tokens; a power of two, and part of what a seed means."""
FIRST_LOOK = 32
"""Groups that are looked at first."""
GROWTH = 8
"""How many times as many are looked at where those do not decide, up to all."""


def race(logits: Tensor, temperature: Tensor, keys: Tensor, kept: tuple[Tensor, Tensor] | None) -> Tensor:
    """The token ids int64 [R] that win under softmax(logits / temperature), of float32 logits [R, V].

    temperature [R, 1]; keys int64 [R, 1] are `race_keys`. With `kept`, floor and last_id of a `FilterCut`, only
    tokens that it keeps take part.
    """
    vocabulary = logits.shape[-1]
    if missing := -vocabulary % GROUP:
        logits = F.pad(logits, (0, missing), value=-torch.inf)
    grouped = logits.unflatten(-1, (-1, GROUP))
    groups = torch.arange(grouped.shape[1], device=logits.device)
    first = exponential(keys, groups, NoiseStream.GROUP) / GROUP
    bounds = grouped.amax(-1) / temperature - first.log()
    if kept is None:
        kept = torch.full_like(temperature, -torch.inf), torch.full_like(keys, vocabulary - 1)
    # on a GPU noise is cheap, and waiting for whether a part of it decides is not
    look = FIRST_LOOK if logits.device.type == "cpu" else len(groups)
    # a row that is NaN throughout must end in the vocabulary as well
    return _winners(_Field(grouped, temperature, keys, *kept, first, bounds), look).clamp_max(vocabulary - 1)


def race_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """int64 [B, T] of seeds int64 [B] and the positions int64 [B, T] that the tokens will have."""
    return random_bits(seeds[:, None], positions, NoiseStream.RACE)


class _Field(NamedTuple):
    grouped: Tensor
    """Logits [R, G, GROUP]."""
    temperature: Tensor
    """[R, 1], and so the next three."""
    keys: Tensor
    floor: Tensor
    last_id: Tensor
    first: Tensor
    """When the first of each group arrives, [R, G]."""
    bounds: Tensor
    """What a token of it can reach."""


def _winners(field: _Field, look: int) -> Tensor:
    """Token ids [R]."""
    grouped, temperature, keys, floor, last_id, first, bounds = field
    partial = look < grouped.shape[1]
    highest, groups = bounds.topk(look + 1 if partial else grouped.shape[1], -1)
    groups = groups[:, :look]
    logits = grouped.gather(1, groups[..., None].expand(-1, -1, GROUP))
    places = torch.arange(GROUP, device=grouped.device)
    token_ids = groups[..., None] * GROUP + places
    is_first = places == (random_bits(keys, groups, NoiseStream.FIRST) & (GROUP - 1))[..., None]
    after = exponential(keys[..., None], token_ids, NoiseStream.TOKEN).masked_fill_(is_first, 0.0)
    scores = logits / temperature[..., None] - (first.gather(1, groups)[..., None] + after).log()
    scores.masked_fill_(is_dropped(logits, token_ids, floor[..., None], last_id[..., None]), -torch.inf)
    score, winner = scores.flatten(1).max(-1)
    winners = token_ids.flatten(1).gather(1, winner[:, None]).squeeze(1)
    if partial:
        rest = (score < highest[:, look]).nonzero().squeeze(-1)
        if len(rest):
            winners[rest] = _winners(_Field(*(part[rest] for part in field)), look * GROWTH)
    return winners
