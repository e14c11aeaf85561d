"""From logits to what is sampled from: one way for target and draft alike.

A vocabulary is large and of most positions only a token's probability is asked for. So a distribution is kept as
logits, the mark below which a filter drops them, and their total; probabilities come where they are asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotdraft.serving.sampling.filters import Filters, cut, is_dropped
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.race import race, race_keys

CHUNK = 1 << 17
"""Logits whose exponentials are summed at a time on a CPU, so that they stay in its cache."""


@dataclass(frozen=True)
class Distributions:
    """The distributions of T tokens in each of B rows: softmax(logits / temperature) over what is kept.

    Filters apply in the usual order: temperature, top-k, top-p on what is left, min-p, epsilon, eta. Penalties come
    before all of them: penalised logits are what is passed in.
    """

    logits: Tensor
    """float32 [B, T, N]."""
    temperature: Tensor
    """float32 [B, 1, 1]; 1 in greedy rows."""
    total: Tensor | None
    """float32 [B, T, 1]: log-sum-exp of what is kept, over the temperature; None if nobody needs it."""
    kept: tuple[Tensor, Tensor] | None
    """floor and last_id of a `FilterCut`, [B, T, 1]; None if no row has filters."""
    vocabulary: Tensor | None
    """int64 [N], ascending: the tokens of the logits, if not all. The others have probability 0."""
    vocab_size: int

    @classmethod
    def of(
        cls, logits: Tensor, sampling: SamplingBatch, vocabulary: Tensor | None = None, vocab_size: int = 0
    ) -> "Distributions":
        """With a `vocabulary` [N] of logits [B, T, N], `vocab_size` says how large the whole is."""
        temperature = torch.where(sampling.temperature == 0, 1.0, sampling.temperature)[..., None]
        total = _logsumexp(logits, temperature) if sampling.needs_total else None
        kept = None
        if sampling.filtered is not None:
            total, kept = _filtered(logits, temperature, total, sampling)
        return cls(logits, temperature, total, kept, vocabulary, vocab_size or logits.shape[-1])

    @classmethod
    def cat(cls, steps: Sequence["Distributions"]) -> "Distributions":
        """Of tokens that follow one another."""
        first = steps[0]
        return replace(
            first,
            logits=torch.cat([step.logits for step in steps], 1),
            total=None if first.total is None else torch.cat([s.total for s in steps if s.total is not None], 1),
            kept=None if first.kept is None else _cat_kept([s.kept for s in steps if s.kept is not None]),
        )

    def picked(self, positions: Tensor) -> "Distributions":
        """Those at positions [B, S] of each row."""
        row = torch.arange(len(positions), device=positions.device)[:, None]
        return replace(
            self,
            logits=self.logits[row, positions],
            total=None if self.total is None else self.total[row, positions],
            kept=None if self.kept is None else (self.kept[0][row, positions], self.kept[1][row, positions]),
        )

    def choose(self, sampling: SamplingBatch, positions: Tensor) -> Tensor:
        """Token ids [B, T]: the winner of a seeded row's race, of others the likeliest.

        positions int64 [B, T] are those that the tokens will have.
        """
        rows = sampling.seeded
        if isinstance(rows, slice):
            return self._race(rows, sampling, positions)
        token_ids = self._named(_likeliest(self.logits))
        return token_ids if rows is None else token_ids.index_copy_(0, rows, self._race(rows, sampling, positions))

    def sample(self, position: Tensor, uniform: Tensor) -> Tensor:
        """Token ids [B], one at `position` [B] of each row, by noise `uniform` [B]."""
        return self._named(sample(self._probs_at(position), uniform))

    def probs_of(self, token_ids: Tensor) -> Tensor:
        """The probabilities [B, S] of token_ids [B, S] at the first S positions; any if not in the vocabulary."""
        length = token_ids.shape[1]
        column = token_ids
        if self.vocabulary is not None:
            column = torch.searchsorted(self.vocabulary, token_ids).clamp_max(len(self.vocabulary) - 1)
        column = column[..., None]
        logits = self.logits[:, :length].gather(-1, column)
        return self._probs(logits, column, self.temperature, slice(None), slice(length)).squeeze(-1)

    def probs_at(self, position: Tensor) -> Tensor:
        """The probabilities [B, V] of all tokens, at `position` [B] of each row."""
        probs = self._probs_at(position)
        if self.vocabulary is None:
            return probs
        return probs.new_zeros(len(probs), self.vocab_size).index_copy_(-1, self.vocabulary, probs)

    def _probs_at(self, position: Tensor) -> Tensor:
        row = torch.arange(len(position), device=position.device)
        column = torch.arange(self.logits.shape[-1], device=position.device)
        return self._probs(self.logits[row, position], column, self.temperature[:, 0], row, position)

    def _probs(
        self, logits: Tensor, column: Tensor, temperature: Tensor, rows: slice | Tensor, positions: slice | Tensor
    ) -> Tensor:
        assert self.total is not None, "some row goes through rejection sampling"
        probs = (logits / temperature).sub_(self.total[rows, positions]).exp_()
        if self.kept is None:
            return probs
        floor, last_id = (part[rows, positions] for part in self.kept)
        return probs.masked_fill_(is_dropped(logits, column, floor, last_id), 0.0)

    def _race(self, rows: slice | Tensor, sampling: SamplingBatch, positions: Tensor) -> Tensor:
        logits, kept = self.logits[rows], None if self.kept is None else [part[rows] for part in self.kept]
        if self.vocabulary is not None:  # noise goes by token id
            everywhere = logits.new_full((*logits.shape[:2], self.vocab_size), -torch.inf)
            logits = everywhere.index_copy_(-1, self.vocabulary, logits)
            kept = None if kept is None else [kept[0], self.vocabulary[kept[1]]]
        keys = race_keys(sampling.seeds[rows], positions[rows])
        return race(
            logits.flatten(0, 1),
            self.temperature[rows].expand(-1, logits.shape[1], -1).reshape(-1, 1),
            keys.view(-1, 1),
            None if kept is None else (kept[0].view(-1, 1), kept[1].view(-1, 1)),
        ).view_as(keys)

    def _named(self, column: Tensor) -> Tensor:
        return column if self.vocabulary is None else self.vocabulary[column]


def _likeliest(logits: Tensor) -> Tensor:
    """Token ids [B, T] of logits [B, T, N]."""
    if logits.device.type == "cpu":  # torch's own compares one at a time there, which takes ten times as long
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def sample(probs: Tensor, uniform: Tensor) -> Tensor:
    """Token ids [...] drawn from unnormalised probs [..., V] by inverting the CDF at uniform [...].

    A token of probability 0 is never drawn: the CDF does not rise there. Of NaN comes some token.
    """
    cdf = probs.cumsum(-1, dtype=torch.float64)
    token_ids = torch.searchsorted(cdf, (uniform * cdf[..., -1])[..., None], right=True).squeeze(-1)
    return token_ids.clamp_max(probs.shape[-1] - 1)


def _filtered(
    logits: Tensor, temperature: Tensor, total: Tensor | None, sampling: SamplingBatch
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`total` with that of filtered rows put in, and `kept`."""
    batch, length, vocabulary = logits.shape
    rows = sampling.filtered
    whole = Filters(temperature[:, 0], sampling.top_k, sampling.top_p, sampling.min_p, sampling.cutoffs)
    filters = whole.at(torch.arange(batch, device=logits.device)[rows].repeat_interleave(length, 0))
    known = None if total is None else total[rows].reshape(-1, 1)
    found = cut(logits[rows].reshape(-1, vocabulary), filters, known)
    if total is None:
        total = logits.new_zeros(batch, length, 1)
    floor = logits.new_full((batch, length, 1), -torch.inf)
    last_id = torch.full((batch, length, 1), vocabulary - 1, device=logits.device)
    for everywhere, part in ((floor, found.floor), (last_id, found.last_id), (total, found.total)):
        everywhere[rows] = part.view(-1, length, 1)
    return total, (floor, last_id)


def _cat_kept(steps: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    floors, last_ids = zip(*steps, strict=True)
    return torch.cat(floors, 1), torch.cat(last_ids, 1)


def _logsumexp(logits: Tensor, temperature: Tensor) -> Tensor:
    """[B, T, 1] of logits [B, T, V] / temperature [B, 1, 1]."""
    if logits.device.type != "cpu":
        return (logits / temperature).logsumexp(-1, keepdim=True)
    rows = max(1, CHUNK // logits.shape[-1])
    by_row = temperature.expand(-1, logits.shape[1], -1).reshape(-1, 1)
    parts = zip(logits.flatten(0, 1).split(rows), by_row.split(rows), strict=True)
    return torch.cat([(part / each).logsumexp(-1, keepdim=True) for part, each in parts]).view(*logits.shape[:2], 1)
