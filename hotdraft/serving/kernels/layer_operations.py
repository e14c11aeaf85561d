"""What a Llama-like layer computes between its products, by torch's operations."""

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class LayerOperations(Protocol):
    name: str
    unseen_launches: int
    """Of a layer, that are no operations of torch."""

    def rms_norm(self, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """hidden [..., N] over the root of its mean square, times weight [N]."""
        ...

    def rotate_and_store(
        self, heads: Tensor, queries: int, cos: Tensor, sin: Tensor, store: Tensor, slots: Tensor
    ) -> Tensor:
        """Rotate queries and keys of heads [B, Q, G + 2H, D], whose first G are `queries`, by position.

        Keys and values go into `store` [S, D] at slots int64 [B*Q*2H]; returned are the queries [B, Q, G, D],
        in the memory of `heads`. cos and sin [B, Q, 1, D] are as in `rotations`.
        """
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, of both in [..., 2N]."""
        ...


class TorchOperations:
    name = "torch"
    unseen_launches = 0

    def rms_norm(self, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return F.rms_norm(hidden, weight.shape, weight, epsilon)

    def rotate_and_store(
        self, heads: Tensor, queries: int, cos: Tensor, sin: Tensor, store: Tensor, slots: Tensor
    ) -> Tensor:
        head_dim = heads.shape[-1]
        keys = (heads.shape[2] - queries) // 2
        rotated = heads[:, :, : queries + keys]
        halves_swapped = rotated.roll(head_dim // 2, -1)
        rotated.mul_(cos).addcmul_(halves_swapped, sin)
        store.index_copy_(0, slots, heads[:, :, queries:].reshape(-1, head_dim))
        return rotated[:, :, :queries]

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up
