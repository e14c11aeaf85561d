"""The same by Triton's kernels: a launch where torch has one to five, and results that are rounded once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _rms_norm(hidden, weight, normed, columns, epsilon, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, block)
    inside = at < columns
    values = tl.load(hidden + row + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(values * values, axis=0) / columns + epsilon)
    scaled = values * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + at, scaled.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_and_store(  # type: ignore[no-untyped-def]
    heads, cos, sin, store, slots, num_heads, queries, rotated, dim: tl.constexpr, block: tl.constexpr
):
    """A head of a token, by halves."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, block)
    inside = at < dim // 2
    source = heads + (token * num_heads + head) * dim + at
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + dim // 2, mask=inside, other=0.0).to(tl.float32)
    if head < rotated:
        cos_at, sin_at = cos + token * dim + at, sin + token * dim + at
        turned = low * tl.load(cos_at, mask=inside, other=0.0) + high * tl.load(sin_at, mask=inside, other=0.0)
        high = high * tl.load(cos_at + dim // 2, mask=inside, other=0.0) + low * tl.load(
            sin_at + dim // 2, mask=inside, other=0.0
        )
        low = turned
    kind = heads.dtype.element_ty
    if head < queries:
        tl.store(source, low.to(kind), mask=inside)
        tl.store(source + dim // 2, high.to(kind), mask=inside)
    else:
        slot = tl.load(slots + token * (num_heads - queries) + head - queries)
        target = store + slot * dim + at
        tl.store(target, low.to(kind), mask=inside)
        tl.store(target + dim // 2, high.to(kind), mask=inside)


@triton.jit
def _gate(gate_up, gated, columns, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < columns
    gate = tl.load(gate_up + 2 * row * columns + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (2 * row + 1) * columns + at, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1 + tl.exp(-gate)) * up
    tl.store(gated + row * columns + at, value.to(gated.dtype.element_ty), mask=inside)


class TritonOperations:
    """See `LayerOperations`; tensors are contiguous, but for what is normed."""

    name = "triton"
    unseen_launches = 4

    def rms_norm(self, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        columns, hidden = hidden.shape[-1], hidden.contiguous()  # the last of each row's tokens may be all there is
        normed = torch.empty_like(hidden)
        block = triton.next_power_of_2(columns)
        warps = min(16, max(1, block // 256))
        _rms_norm[(hidden.numel() // columns,)](
            hidden, weight, normed, columns, epsilon, block=block, num_warps=warps
        )
        return normed

    def rotate_and_store(
        self, heads: Tensor, queries: int, cos: Tensor, sin: Tensor, store: Tensor, slots: Tensor
    ) -> Tensor:
        batch, length, num_heads, head_dim = heads.shape
        _rotate_and_store[(batch * length, num_heads)](
            heads,
            cos,
            sin,
            store,
            slots,
            num_heads,
            queries,
            (num_heads + queries) // 2,
            dim=head_dim,
            block=triton.next_power_of_2(head_dim // 2),
            num_warps=1,
        )
        return heads[:, :, :queries]

    def gate(self, gate_up: Tensor) -> Tensor:
        columns = gate_up.shape[-1] // 2
        gated = gate_up.new_empty(*gate_up.shape[:-1], columns)
        _gate[(gated.numel() // columns, triton.cdiv(columns, BLOCK))](gate_up, gated, columns, block=BLOCK)
        return gated
