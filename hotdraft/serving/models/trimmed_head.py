"""The draft's output head over the most frequent part of the vocabulary.

A draft that never proposes a rare token is still lossless, because its `draft_probs` are 0 there, and
the head is the larger half of a small draft's cost (Zhao et al., "FR-Spec", 2025).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.native.linear import NativeLinear

PART_ROWS = 1024
"""Whole panels of the native library."""


class TrimmedHead(nn.Module):
    """Logits [..., N] of the tokens `token_ids` only; which these are can be changed in place."""

    def __init__(
        self,
        head: nn.Linear,
        token_ids: Tensor,
        make_linear: Callable[[Mapping[str, Tensor], Tensor | None], ServedLinear | NativeLinear] = ServedLinear,
    ) -> None:
        super().__init__()
        self._full = head.weight.detach()
        self._full_bias = None if head.bias is None else head.bias.detach()
        self.token_ids = token_ids.to(self._full.device, torch.int64, copy=True)
        """int64 [N], ascending; another tensor after each `install`."""
        bias = None if self._full_bias is None else self._full_bias[self.token_ids]
        self.linear = make_linear({"weight": self._full[self.token_ids]}, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)

    def prepare(self, token_ids: Tensor) -> Tensor:
        """The weight that `install` takes with `token_ids` [N]; may run in any thread."""
        return self.joined(self.prepared_by_parts(token_ids))

    def prepared_by_parts(self, token_ids: Tensor) -> Iterator[Tensor]:
        """What is `joined` to the same; on a CPU none of them takes long."""
        assert token_ids.shape == self.token_ids.shape, "the head keeps its size"
        rows = PART_ROWS if isinstance(self.linear, NativeLinear) else len(token_ids)
        for ids in token_ids.to(self._full.device).split(rows):
            yield self.linear.prepare({"weight": self._full[ids]})

    @staticmethod
    def joined(parts: Iterable[Tensor]) -> Tensor:
        first, *others = parts
        return torch.cat([first, *others]) if others else first

    def install(self, token_ids: Tensor, prepared: Tensor) -> None:
        """Cover other tokens from now on."""
        self.token_ids = token_ids.to(self.token_ids)  # a new one, as whoever holds the old may compare
        self.linear.install(prepared)
        if self._full_bias is not None:
            assert self.linear.bias is not None
            self.linear.bias[: len(self.token_ids)] = self._full_bias[self.token_ids]


def vocabulary_of(head: nn.Module) -> Tensor | None:
    """int64 [N]: the tokens of a draft's head, if it is not the whole vocabulary."""
    return head.token_ids if isinstance(head, TrimmedHead) else None
