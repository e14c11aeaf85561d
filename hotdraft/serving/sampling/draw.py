"""Drawing what a draft proposes: penalties, filters, and the noise of each row's seed."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.noise import NoiseStream, random_bits, uniform
from hotdraft.serving.sampling.penalties import AnswerTokens, penalise
from hotdraft.serving.sampling.proposal import Proposal
from hotdraft.serving.sampling.soundness import are_sound, mended


@dataclass(frozen=True)
class Drawn:
    """A token of each of B rows."""

    token_ids: Tensor
    """int64 [B, 1]."""
    drawn_from: Distributions | None
    """None if every row's token was chosen."""
    sound: Tensor
    """bool [B, 1]: whether the logits were; any token where not."""


def draw(
    logits: Tensor,
    position: Tensor,
    seeds: Tensor,
    sampling: SamplingBatch,
    counts: Tensor | None,
    vocabulary: Tensor | None,
    vocab_size: int,
) -> Drawn:
    """From logits [B, 1, N] the token at int64 `position` [B, 1] of each row, by the `seeds` [B, 1] of its round.

    `counts` [B, V] says how often each token came, if some row is penalised by that. With a `vocabulary` [N] the
    logits are of these tokens only.
    """
    sound = are_sound(logits)
    if sampling.any_sampled:
        logits = mended(logits, sound)
    logits = (logits[..., :vocab_size] if vocabulary is None else logits).float()
    if sampling.any_penalised:
        known = counts if counts is None or vocabulary is None else counts[:, vocabulary]
        logits = penalise(logits, position, known, sampling, vocabulary=vocabulary)
    drawn_from = Distributions.of(logits, sampling, vocabulary, vocab_size)
    token_ids = _sample(drawn_from, position, seeds, sampling)
    return Drawn(token_ids, None if sampling.all_chosen else drawn_from, sound[:, 0])


def _sample(drawn_from: Distributions, position: Tensor, seeds: Tensor, sampling: SamplingBatch) -> Tensor:
    if sampling.all_chosen:
        return drawn_from.choose(sampling, position)
    first = torch.zeros_like(sampling.seeds)
    token_ids = drawn_from.sample(first, uniform(seeds, position, NoiseStream.DRAFT)[:, 0])[:, None]
    if sampling.chosen is not None:
        token_ids[sampling.chosen] = drawn_from.choose(sampling, position)[sampling.chosen]
    return token_ids


class Drawing:
    """A proposal of B rows as it grows, token by token."""

    def __init__(
        self,
        sampling: SamplingBatch,
        answers: AnswerTokens,
        vocabulary: Tensor | None,
        draw: Callable[..., Drawn] = draw,
        begun: Tensor | None = None,
    ) -> None:
        """`begun` [B, 1]: where the round did, if the last of `answers` are guessed in it and not committed."""
        self._seeds = sampling.seeds[:, None]
        if not sampling.all_chosen:
            # Others each round: which alternatives are read depends on all that was drafted, also behind a token
            # that is refused, where the next round drafts anew.
            begun = answers.end if begun is None else begun
            self._seeds = random_bits(self._seeds, begun, NoiseStream.DRAFT)
        self._sampling = sampling
        self._answers = answers
        self._vocabulary = vocabulary
        self._draw = draw
        self._counts = answers.penalised_counts(sampling)
        """Of the answers with what was drafted, [B, V]."""
        self._sound = torch.ones_like(answers.end, dtype=torch.bool)
        self._steps: list[Drawn] = []

    def draw(self, logits: Tensor) -> Tensor:
        """The next token ids [B, 1], from logits [B, 1, N]; any token where those are not sound."""
        position = self._answers.end + len(self._steps)
        drawn = self._draw(
            logits, position, self._seeds, self._sampling, self._counts, self._vocabulary, self._answers.vocab_size
        )
        self._sound = self._sound & drawn.sound
        if self._counts is not None:
            one = torch.ones_like(drawn.token_ids, dtype=self._counts.dtype)
            self._counts = self._counts.scatter_add(1, drawn.token_ids, one)
        self._steps.append(drawn)
        return drawn.token_ids

    def proposal(self) -> Proposal:
        """All that was drawn."""
        token_ids = torch.cat([step.token_ids for step in self._steps], 1)
        num_drafted = token_ids.new_full((len(token_ids),), len(self._steps))
        drawn_from = [step.drawn_from for step in self._steps if step.drawn_from is not None]
        return Proposal(token_ids, num_drafted, Distributions.cat(drawn_from) if drawn_from else None, self._sound)
