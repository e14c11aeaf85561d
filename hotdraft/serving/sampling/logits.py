"""How the rows of a batch are sampled."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from hotdraft.pipeline.system.transfer import sent
from hotdraft.serving.messages.request import SamplingParams

Rows = slice | torch.Tensor | None
"""Some rows of a batch: all, those of int64 indices, or none. A slice makes a view where indices copy."""

_NEVER = -1e30
"""Added to a logit that is to have no chance; a sum of them is a number too."""
_FOR_EVER = 2**62


class Withheld(NamedTuple):
    """Tokens that may not come at positions before `until`."""

    token_ids: frozenset[int]
    until: int


@dataclass(frozen=True)
class SamplingBatch:
    """The sampling parameters of a batch, one row a request; shapes [B, 1] to broadcast over positions."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    cutoffs: torch.Tensor | None
    """[B, 2]: epsilon and eta; None if no row has any."""
    presence_penalty: torch.Tensor
    frequency_penalty: torch.Tensor
    repetition_penalty: torch.Tensor
    seeds: torch.Tensor
    """int64 [B]."""
    any_sampled: bool
    """False: every row is greedy."""
    filtered: Rows
    seeded: Rows
    """Rows above temperature 0 whose request named a seed."""
    chosen: Rows
    """Greedy and seeded rows: the target chooses one token, whatever was drafted. The other rows go through
    rejection sampling."""
    needs_total: bool
    """Whether some row needs the mass of its whole vocabulary."""
    any_counted: bool
    """Whether some row is penalised by how often its tokens came."""
    any_repetition: bool
    """Whether for some row the tokens of its prompt came as well."""
    biased: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None
    """Rows, token ids, what is added to their logits, before which position: [M] each, None if no row has any."""
    any_logprobs: bool
    """True: some request is told the log-probs of its tokens."""

    @classmethod
    def of(
        cls,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        device: torch.device,
        withheld: Sequence[Withheld | None] = (),
    ) -> "SamplingBatch":
        """`withheld` is of each row, if of any."""
        penalties = [(p.presence_penalty, p.frequency_penalty, p.repetition_penalty) for p in params]
        numbers = [(p.temperature, p.top_p, p.min_p, *its) for p, its in zip(params, penalties, strict=True)]
        columns = sent(list(zip(*numbers, strict=True)), torch.float32, device)[..., None]  # one copy, not six
        temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty = columns
        top_k, own_seeds = sent([[p.top_k for p in params], list(seeds)], torch.int64, device)

        def rows(wanted: Iterable[bool]) -> Rows:
            indices = [row for row, is_wanted in enumerate(wanted) if is_wanted]
            if len(indices) == len(params):
                return slice(None)
            return sent(indices, torch.int64, device) if indices else None

        return cls(
            temperature=temperature,
            top_k=top_k[:, None],
            top_p=top_p,
            min_p=min_p,
            cutoffs=_cutoffs(params, device),
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repetition_penalty=repetition_penalty,
            seeds=own_seeds,
            any_sampled=any(p.temperature > 0 for p in params),
            filtered=rows(p.temperature > 0 and p.has_filters for p in params),
            seeded=rows(p.temperature > 0 and p.seed is not None for p in params),
            chosen=rows(p.temperature == 0 or p.seed is not None for p in params),
            needs_total=any(
                p.temperature > 0
                and (((p.top_p < 1 or p.has_cutoffs) and p.top_k == 0) or (not p.has_filters and p.seed is None))
                for p in params
            ),
            any_counted=any(p.is_counted for p in params),
            any_repetition=any(p.repetition_penalty != 1 for p in params),
            biased=_biased(params, withheld, device),
            any_logprobs=any(p.logprobs is not None for p in params),
        )

    @property
    def any_penalised(self) -> bool:
        """Whether some row is drawn from other logits than the model's own."""
        return self.any_counted or self.biased is not None

    @property
    def is_greedy(self) -> bool:
        """Whether every row takes the likeliest token of the logits as they are."""
        return not self.any_sampled and not self.any_penalised

    @property
    def all_chosen(self) -> bool:
        """Whether no row goes through rejection sampling."""
        return isinstance(self.chosen, slice)

    @property
    def kind(self) -> tuple[bool, ...]:
        """What a round's cost depends on: sampled, filtered, seeded, rejection-sampled, penalised."""
        some = (self.filtered is not None, self.seeded is not None)
        return (self.any_sampled, *some, not self.all_chosen, self.any_penalised)


def _cutoffs(params: Sequence[SamplingParams], device: torch.device) -> torch.Tensor | None:
    if not any(p.has_cutoffs for p in params):
        return None
    return sent([[p.epsilon_cutoff, p.eta_cutoff] for p in params], torch.float32, device)


def _biased(
    params: Sequence[SamplingParams], withheld: Sequence[Withheld | None], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None:
    entries = [(row, token_id, bias, _FOR_EVER) for row, one in enumerate(params) for token_id, bias in one.biases]
    for row, held in enumerate(withheld):
        entries += [(row, token_id, _NEVER, held.until) for token_id in held.token_ids] if held else []
    if not entries:
        return None
    # as few shapes as there are powers of two: each is a CUDA graph
    entries += [(0, 0, 0.0, 0)] * ((1 << (len(entries) - 1).bit_length()) - len(entries))
    rows, token_ids, biases, until = zip(*entries, strict=True)
    return (
        sent(rows, torch.int64, device),
        sent(token_ids, torch.int64, device),
        sent(biases, torch.float32, device),
        sent(until, torch.int64, device),
    )
