"""Drawing what a draft proposes: penalties, filters, and the noise of each row's seed."""

import torch
from torch import Tensor

from hotdraft.serving.sampling.distributions import Distributions
from hotdraft.serving.sampling.logits import SamplingBatch
from hotdraft.serving.sampling.noise import NoiseStream, uniform
from hotdraft.serving.sampling.penalties import AnswerTokens, penalise
from hotdraft.serving.sampling.proposal import Proposal
from hotdraft.serving.sampling.soundness import are_sound, mended


class Drawing:
    """A proposal of B rows as it grows, token by token.

    With a `vocabulary` [N] the logits are of these tokens only.
    """

    def __init__(self, sampling: SamplingBatch, answers: AnswerTokens, vocabulary: Tensor | None) -> None:
        self._sampling = sampling
        self._answers = answers
        self._vocabulary = vocabulary
        self._counts = answers.counts() if sampling.any_penalised else None
        """Of the answers with what was drafted, [B, V]."""
        self._sound = torch.ones_like(answers.end, dtype=torch.bool)
        self._ids: list[Tensor] = []
        self._steps: list[Distributions] = []

    def draw(self, logits: Tensor) -> Tensor:
        """The next token ids [B, 1], from logits [B, 1, N]; any token where those are not sound."""
        sampling, vocab_size = self._sampling, self._answers.vocab_size
        usable = are_sound(logits)
        self._sound = self._sound & usable[:, 0]
        if sampling.any_sampled:
            logits = mended(logits, usable)
        logits = (logits[..., :vocab_size] if self._vocabulary is None else logits).float()
        if self._counts is not None:
            known = self._counts if self._vocabulary is None else self._counts[:, self._vocabulary]
            logits = penalise(logits, known[:, None], sampling, self._vocabulary)
        drawn_from = Distributions.of(logits, sampling, self._vocabulary, vocab_size)
        token_ids = self._sample(drawn_from)
        if self._counts is not None:
            self._counts.scatter_add_(1, token_ids, torch.ones_like(token_ids, dtype=self._counts.dtype))
        self._ids.append(token_ids)
        self._steps.append(drawn_from)
        return token_ids

    def proposal(self) -> Proposal:
        """All that was drawn."""
        token_ids = torch.cat(self._ids, 1)
        num_drafted = token_ids.new_full((len(token_ids),), len(self._ids))
        drawn_from = None if self._sampling.all_chosen else Distributions.cat(self._steps)
        return Proposal(token_ids, num_drafted, drawn_from, self._sound)

    def _sample(self, drawn_from: Distributions) -> Tensor:
        sampling, position = self._sampling, self._answers.end + len(self._ids)
        if sampling.all_chosen:
            return drawn_from.choose(sampling, position)
        first = torch.zeros_like(sampling.seeds)
        token_ids = drawn_from.sample(first, uniform(sampling.seeds, position[:, 0], NoiseStream.DRAFT))[:, None]
        if sampling.chosen is not None:
            token_ids[sampling.chosen] = drawn_from.choose(sampling, position)[sampling.chosen]
        return token_ids
