"""Rounds as they are predicted: by what they launch, or by what they read, whichever takes longer."""

from pathlib import Path

import pytest
import torch

from hotdraft.gpu_check.checks.decoding import EagerGraphs
from hotdraft.gpu_check.checks.launches import Forward, beside_forwards, of_both_runners
from hotdraft.gpu_check.checks.prediction import Device, Size, forward_seconds, round_seconds
from hotdraft.serving.messages.request import SamplingParams

DOCUMENT = Path(__file__).parents[3] / "docs" / "gpu.md"
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


def test_the_documented_predictions_are_what_this_arithmetic_gives() -> None:
    cpu, device = torch.device("cpu"), Device(launch_seconds=5e-6, bytes_per_second=4e12)
    target, drafts = Size(32, 13_200_000_000), (Size(4, 300_000_000), Size(22, 2_100_000_000))
    ways = (SamplingParams(temperature=0), SamplingParams(temperature=0.8, top_p=0.9))
    forwards = of_both_runners(cpu)
    text = DOCUMENT.read_text()
    for name, forward, graphs in (
        ("transformers' layers | 37", forwards["transformers"], None),
        ("own layers | 19", forwards["fused"], None),
        ("graphs |", forwards["fused"], EagerGraphs()),
    ):
        graph = graphs is not None
        beside = [beside_forwards(cpu, params, 4, graphs) for params in ways]
        seconds = [forward_seconds(forward, target, device, graph=graph)]
        seconds += [
            round_seconds(forward, target, draft, 4, launches, device, graph=graph)
            for draft in drafts
            for launches in beside
        ]
        assert f"| {name} | {' | '.join(f'{1000 * one:.1f}' for one in seconds)} |" in text
