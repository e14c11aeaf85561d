"""Where outputs part, and by how little."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotdraft.serving.benchmark.engines.engine import PLAIN, Mode, RunResult
from hotdraft.serving.benchmark.equality import Divergence, compare, first_divergence, margin, reference_outputs
from hotdraft.serving.benchmark.figures.summary import Measurement


class Target:
    """Says the same logits after any context."""

    device = torch.device("cpu")

    def __init__(self, *logits: float) -> None:
        self.logits = torch.tensor(logits)
        self.asked: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, logits_to_keep: int) -> Any:
        self.asked.append(input_ids[0].tolist())
        return SimpleNamespace(logits=self.logits[None, None])


def measured(
    engine: str, mode: Mode, outputs: list[list[int]], concurrency: int = 1, repeat: int = 0
) -> Measurement:
    return Measurement(engine, mode, concurrency, repeat, RunResult(1.0, outputs, []))


def test_first_divergence() -> None:
    assert first_divergence([7, 8], [1, 2, 3], [1, 2, 3]) is None
    assert first_divergence([7, 8], [1, 5, 9], [1, 2, 3]) == Divergence((7, 8, 1), token=5, reference_token=2)


@pytest.mark.parametrize(("token", "expected"), [(1, 0.5), (2, 3.0)])
def test_margin_is_to_the_lower_of_both_tokens(token: int, expected: float) -> None:
    target: Any = Target(2.0, 1.5, -1.0)
    assert margin(target, Divergence((4,), token, reference_token=0)) == expected


def test_every_repeat_is_compared_and_each_context_asked_once() -> None:
    target: Any = Target(2.0, 1.5, -1.0)
    measurements = [
        measured("hotdraft", PLAIN, [[0, 0], [1, 1]]),
        measured("hotdraft", PLAIN, [[0, 1], [1, 1]], repeat=1),
        measured("hotdraft", PLAIN, [[0, 1], [1, 1]], repeat=2),
    ]
    [found] = compare(measurements, [[5], [6]], [[0, 0], [1, 1]], target)
    assert (found.equal, found.outputs, found.margins) == (4, 6, [0.5, 0.5])
    assert target.asked == [[5, 0]]


def test_the_reference_is_transformers_plain_alone() -> None:
    ours = measured("hotdraft", PLAIN, [[1]])
    speculative = measured("transformers", Mode("speculative", 2), [[2]])
    together = measured("transformers", PLAIN, [[3]], concurrency=4)
    alone = measured("transformers", PLAIN, [[4]])
    assert reference_outputs([ours, speculative, together, alone]) == [[4]]
    assert reference_outputs([ours]) == [[1]]
