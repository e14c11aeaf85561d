"""What the target thought of tokens: the few likeliest at each position, and the one that came."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotdraft.pipeline.replay.sample import MIN_LOG_MASS
from hotdraft.serving.messages.request import TokenLogprob

BLOCK = 64


@dataclass(frozen=True)
class TargetLog:
    """The target's distribution at T positions of B rows, at temperature 1, unpenalised and unfiltered."""

    top_ids: np.ndarray
    """int32 [B, T, K], likeliest first."""
    top_logprobs: np.ndarray
    """float32 [B, T, K]."""
    tail_logprob: np.ndarray
    """float32 [B, T]: log of the mass outside the K tokens."""
    token_logprobs: np.ndarray | None
    """float32 [B, T]: those of the tokens that came, wherever they rank; None if nobody asked for them."""

    def positions(self, start: int, stop: int) -> "TargetLog":
        """Some of the first axis, which are positions where there is but one row."""
        tokens = None if self.token_logprobs is None else self.token_logprobs[start:stop]
        return TargetLog(
            self.top_ids[start:stop], self.top_logprobs[start:stop], self.tail_logprob[start:stop], tokens
        )

    def of_tokens(self, row: int, token_ids: list[int], number: int) -> list[TokenLogprob]:
        """The log-probs of the tokens that came at a row's first positions, each with the `number` likeliest."""
        assert self.token_logprobs is not None
        count = len(token_ids)
        own = self.token_logprobs[row, :count].tolist()
        top_ids, top_logprobs = (part[row, :count, :number].tolist() for part in (self.top_ids, self.top_logprobs))
        return [
            TokenLogprob(token, logprob, tuple(zip(ids, logprobs, strict=True)))
            for token, logprob, ids, logprobs in zip(token_ids, own, top_ids, top_logprobs, strict=True)
        ]


def pack(logits: Tensor, top_k: int, token_ids: Tensor | None) -> Tensor:
    """A `TargetLog` of float32 logits [B, T, V] as int32 [B, T, C], log-probs as their bits.

    With `token_ids` [B, T] of the tokens that came, theirs too.
    """
    everything = logits.log_softmax(-1)
    logprobs, top_ids = likeliest(everything, min(top_k, logits.shape[-1]))
    tail = (1 - logprobs.double().exp().sum(-1, keepdim=True)).clamp_min(0).log().clamp_min(MIN_LOG_MASS).float()
    parts = [top_ids.int(), logprobs.view(torch.int32), tail.view(torch.int32)]
    if token_ids is not None:
        parts.append(everything.gather(-1, token_ids[..., None]).view(torch.int32))
    return torch.cat(parts, -1)


def likeliest(values: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The `number` largest of `values` [..., V], largest first, and where they are.

    On a CPU in two steps: they lie in as many blocks as have the largest maxima, which takes half the time.
    """
    blocks = -(-values.shape[-1] // BLOCK)
    if values.device.type != "cpu" or blocks < 2 * number:
        top, places = values.topk(number)
        return top, places
    padded = torch.nn.functional.pad(values, (0, blocks * BLOCK - values.shape[-1]), value=-torch.inf)
    blocked = padded.unflatten(-1, (blocks, BLOCK))
    chosen = blocked.amax(-1).topk(number, sorted=False).indices
    candidates = blocked.gather(-2, chosen[..., None].expand(*chosen.shape, BLOCK)).flatten(-2)
    top, places = candidates.topk(number)
    return top, chosen.gather(-1, places // BLOCK) * BLOCK + places % BLOCK


def unpack(packed: np.ndarray, *, with_tokens: bool) -> TargetLog:
    """What `pack` made, on the host; `with_tokens` says that it was given those that came."""
    top_k = (packed.shape[-1] - 1 - with_tokens) // 2
    logprobs = packed[..., top_k:].view(np.float32)
    return TargetLog(
        top_ids=packed[..., :top_k],
        top_logprobs=logprobs[..., :top_k],
        tail_logprob=logprobs[..., top_k],
        token_logprobs=logprobs[..., top_k + 1] if with_tokens else None,
    )
