"""Triton's kernels compute what torch does, and torch computes where they do not."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from hotdraft.serving.kernels import choose
from hotdraft.serving.kernels.choose import TOLERANCE, distance, layer_operations
from hotdraft.serving.kernels.layer_operations import LayerOperations, TorchOperations

CPU, GPU = torch.device("cpu"), torch.device("cuda")
MODULE = "hotdraft.serving.kernels.triton_operations"


INTERPRETED = """
import torch
from hotdraft.serving.kernels.choose import distance
from hotdraft.serving.kernels.layer_operations import TorchOperations
from hotdraft.serving.kernels.triton_operations import TritonOperations
for dtype in (torch.float32, torch.bfloat16):
    for head_dim in (64, 80, 128):
        print(distance(TritonOperations(), TorchOperations(), torch.device("cpu"), dtype, head_dim))
"""


def test_they_compute_the_same() -> None:
    """By Triton's interpreter, which a processor runs, where nothing has imported Triton without it."""
    pytest.importorskip("triton")
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [float(line) for line in done.stdout.split()]
    assert max(found[:3]) <= 1e-6
    assert max(found[3:]) <= TOLERANCE


class Spoiled(TorchOperations):
    def __init__(self, part: str, factor: float) -> None:
        self._part, self._factor = part, factor

    def rms_norm(self, *arguments: Any) -> Tensor:
        return super().rms_norm(*arguments) * (self._factor if self._part == "norm" else 1)

    def rotate_and_store(self, heads: Tensor, queries: int, cos: Tensor, sin: Tensor, *into: Tensor) -> Tensor:
        rotated = super().rotate_and_store(heads, queries, cos, sin, *into)
        if self._part == "store":
            into[0].mul_(self._factor)
        return rotated * (self._factor if self._part == "rotation" else 1)

    def gate(self, gate_up: Tensor) -> Tensor:
        return super().gate(gate_up) * (self._factor if self._part == "gate" else 1)


@pytest.mark.parametrize("part", ["norm", "rotation", "store", "gate"])
@pytest.mark.parametrize("factor", [1.05, float("nan")])
def test_whatever_one_computes_otherwise_is_seen(part: str, factor: float) -> None:
    assert not distance(Spoiled(part, factor), TorchOperations(), CPU, torch.bfloat16, 64) <= TOLERANCE


def on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, found: float | Exception, with_triton: bool = True
) -> LayerOperations:
    def compared(*_: object) -> float:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(choose, "distance", compared)
    if not with_triton:
        monkeypatch.setitem(sys.modules, MODULE, None)
    return layer_operations(GPU, torch.bfloat16, 64)


def test_a_gpu_has_tritons_where_they_prove_right(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    assert on_a_gpu(monkeypatch, 0.001).name == "triton"
    assert layer_operations(CPU, torch.bfloat16, 64).name == "torch"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (0.2, "0.200 from what torch computes"),
        (float("nan"), "nan from what torch computes"),
        (RuntimeError("PassManager::run failed\nand more"), "RuntimeError: PassManager::run failed"),
    ],
)
def test_where_they_do_not_torch_computes_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, found: Any, says: str
) -> None:
    pytest.importorskip("triton")
    assert on_a_gpu(monkeypatch, found).name == "torch"
    assert says in caplog.text
    assert "and more" not in caplog.text


def test_without_triton_torch_computes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert on_a_gpu(monkeypatch, 0.0, with_triton=False).name == "torch"
    assert "without Triton" in caplog.text
