"""Packing and stacking change where the weights lie, not what they compute."""

import pytest
import torch
from torch import Tensor, nn

from hotdraft.serving.models.linear import ServedLinear, cpu_has_bfloat16

DTYPES = [
    torch.float32,
    pytest.param(
        torch.bfloat16,
        marks=pytest.mark.skipif(not cpu_has_bfloat16(), reason="this CPU has no bfloat16 in oneDNN"),
    ),
]
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}


def layers(dtype: torch.dtype, bias: bool, seed: int = 0) -> dict[str, nn.Linear]:
    """Three layers of one input, of different sizes."""
    torch.manual_seed(seed)
    return {name: nn.Linear(48, width, bias=bias).to(dtype) for name, width in (("q", 80), ("k", 16), ("v", 33))}


def separately(parts: dict[str, nn.Linear], inputs: Tensor) -> Tensor:
    return torch.cat([layer(inputs) for layer in parts.values()], -1)


@pytest.fixture(autouse=True)
def _no_grad() -> object:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_agrees_with_separate_plain_layers(dtype: torch.dtype, bias: bool, tokens: int) -> None:
    parts = layers(dtype, bias)
    served = ServedLinear.of(parts)
    assert served.packed == (dtype == torch.bfloat16)
    inputs, residual = torch.randn(2, tokens, 48).to(dtype), torch.randn(2, tokens, 129).to(dtype)
    expected = separately(parts, inputs)
    torch.testing.assert_close(served(inputs), expected, **TOLERANCE[dtype])
    torch.testing.assert_close(served.add_to(residual.clone(), inputs), residual + expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_exchanged_in_place(dtype: torch.dtype) -> None:
    first, second = layers(dtype, bias=False), layers(dtype, bias=False, seed=1)
    served = ServedLinear.of(first)
    held, address = served.weight, None if served.packed else served.weight.data_ptr()
    inputs = torch.randn(1, 4, 48).to(dtype)
    served.install(served.prepare({f"{name}.weight": layer.weight for name, layer in second.items()}))
    assert served.weight is held
    assert served.packed or served.weight.data_ptr() == address
    torch.testing.assert_close(served(inputs), separately(second, inputs), **TOLERANCE[dtype])
    assert (served(inputs) - separately(first, inputs)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_come_back_to_the_bit(dtype: torch.dtype) -> None:
    parts = layers(dtype, bias=False)
    served = ServedLinear.of(parts)
    kept = served.weights()
    assert list(kept) == ["q.weight", "k.weight", "v.weight"]
    other = {name: torch.randn_like(weight) for name, weight in kept.items()}
    served.install(served.prepare(other))
    assert all(torch.equal(weight, other[name]) for name, weight in served.weights().items())
    assert all(torch.equal(kept[f"{name}.weight"], layer.weight) for name, layer in parts.items()), "a copy"


def test_what_is_prepared_does_not_touch_what_serves() -> None:
    served = ServedLinear.of(layers(torch.float32, bias=False))
    before = served.weights()
    served.prepare({name: torch.zeros_like(weight) for name, weight in before.items()})
    assert all(torch.equal(weight, before[name]) for name, weight in served.weights().items())
