"""Which operations layers are computed by: Triton's where they prove to be right on the device at hand."""

import logging

import torch
from torch import Tensor

from hotdraft.serving.kernels.layer_operations import LayerOperations, TorchOperations

logger = logging.getLogger(__name__)

TOLERANCE = 2.0**-6
"""Of values around 1, between which bfloat16 has steps of 2^-7: torch rounds more than once."""


def layer_operations(device: torch.device, dtype: torch.dtype, head_dim: int) -> LayerOperations:
    """Triton's on a GPU; torch's elsewhere, and with a warning where Triton is missing or computes otherwise."""
    plain = TorchOperations()
    if device.type != "cuda":
        return plain
    try:
        from hotdraft.serving.kernels.triton_operations import TritonOperations

        fused = TritonOperations()
        far = distance(fused, plain, device, dtype, head_dim)
    except Exception as error:  # noqa: BLE001 -- a compiler runs in it, which fails in its own ways
        [says, *_] = str(error).splitlines() or [""]
        logger.warning("layers are computed without Triton: %s: %s", type(error).__name__, says)
        return plain
    if not far <= TOLERANCE:
        logger.warning("layers are computed without Triton, which is %.3f from what torch computes", far)
        return plain
    return fused


@torch.inference_mode()
def distance(
    one: LayerOperations, other: LayerOperations, device: torch.device, dtype: torch.dtype, head_dim: int
) -> float:
    """The largest difference between what they compute of random values; NaN where there is none to be had."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    queries, keys, tokens = 6, 2, 4
    hidden, weight, gate_up = some(2, 3, 320)[:, -2:], some(320), some(2, 2, 2 * 1100)
    heads, store = some(2, 2, queries + 2 * keys, head_dim), some(64, head_dim)
    angles = some(2, 2, 1, head_dim).float()
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    slots = torch.randperm(64, generator=generator)[: tokens * 2 * keys].to(device)

    def results(operations: LayerOperations) -> list[Tensor]:
        into = store.clone()
        rotated = operations.rotate_and_store(heads.clone(), queries, cos, sin, into, slots)
        return [rotated, into, operations.rms_norm(hidden, weight, 1e-5), operations.gate(gate_up)]

    pairs = zip(results(one), results(other), strict=True)
    gaps = [((a.double() - b.double()).abs() / b.double().abs().clamp_min(1)).max() for a, b in pairs]
    return float(torch.stack(gaps).max())
