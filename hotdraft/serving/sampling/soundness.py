"""Whether a distribution can be made of logits.

Attention masks a key by adding -inf to its score, and NaN survives that: one such key that is left in a
slot spoils every later request there. So whoever finds unsound logits zeroes the slot's keys.
"""

import torch
from torch import Tensor


class UnsoundLogitsError(RuntimeError):
    """A model gave NaN, or no token a chance."""


def are_sound(logits: Tensor) -> Tensor:
    """bool [..., 1] of logits [..., V]: none is NaN or +inf, and not all are -inf."""
    return logits.amax(-1, keepdim=True).isfinite()


def mended(logits: Tensor, sound: Tensor) -> Tensor:
    """Logits [..., V] that are level where they were not `sound` [..., 1]: any token may be guessed there."""
    return torch.where(sound, logits, 0.0)
