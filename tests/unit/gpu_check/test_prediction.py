"""Rounds as they are predicted: by what they launch, or by what they read, whichever takes longer."""

import pytest
import torch

from hotdraft.gpu_check.checks.launches import Forward, of_both_runners
from hotdraft.gpu_check.checks.prediction import Device, Size, forward_seconds, round_seconds

DEVICE = Device(launch_seconds=5e-6, bytes_per_second=4e12)
TARGET, DRAFT = Size(32, 13_400_000_000), Size(4, 300_000_000)
FUSED = Forward(layer=20, outside=20)


def test_a_small_models_forward_is_its_launches_and_a_graph_is_one() -> None:
    assert forward_seconds(FUSED, DRAFT, DEVICE, graph=False) == pytest.approx(100 * 5e-6)
    assert forward_seconds(FUSED, DRAFT, DEVICE, graph=True) == pytest.approx(3e8 / 4e12)


def test_a_large_models_forward_is_what_it_reads() -> None:
    assert forward_seconds(FUSED, TARGET, DEVICE, graph=True) == pytest.approx(3.35e-3)
    assert forward_seconds(FUSED, TARGET, DEVICE, graph=False) == pytest.approx(660 * 5e-6, rel=0.02)


def test_a_round_is_its_draft_steps_a_forward_of_the_target_and_what_else_is_launched() -> None:
    whole = round_seconds(FUSED, TARGET, DRAFT, 4, 100, DEVICE, graph=True)
    assert whole == pytest.approx(4 * 75e-6 + 3.35e-3 + 0.5e-3)


def test_own_layers_launch_half_of_what_transformers_do() -> None:
    found = of_both_runners(torch.device("cpu"))
    assert found["fused"].layer <= 19
    assert found["transformers"].layer > 1.8 * found["fused"].layer
