"""A function as a graph: the same results, of new arguments, with far fewer launches; none of it breaks a graph."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hotdraft.gpu_check.checks.launches import beside_forwards
from hotdraft.serving.graphs import graphed_function
from hotdraft.serving.graphs.graphed_function import GraphedFunction
from hotdraft.serving.graphs.recurring import RECURS, GraphCounts
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.sampling.draw import Drawing, draw
from hotdraft.serving.sampling.logits import SamplingBatch, Withheld
from hotdraft.serving.sampling.penalties import AnswerTokens
from hotdraft.serving.sampling.verify import verify
from tests.unit.serving.graphs.recorded import RecordedGraphs

K, VOCABULARY = 3, 120
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.8},
    "top_k, top_p, min_p": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "eta": {"temperature": 1.0, "eta_cutoff": 0.01},
    "seeded": {"temperature": 0.8, "seed": 7},
    "seeded, top_p": {"temperature": 0.8, "seed": 7, "top_p": 0.9},
    "penalised": {"temperature": 0.8, "presence_penalty": 0.5, "repetition_penalty": 1.2},
    "biased, withheld": {"temperature": 0.8, "logit_bias": ((3, 1.0),), "min_tokens": 3},
}


def batch(some: dict[str, Any]) -> SamplingBatch:
    """A row of that kind and a greedy one."""
    params = [SamplingParams(**some), SamplingParams(temperature=0)]
    held = [Withheld(frozenset(range(60)), 7) if some.get("min_tokens") else None, None]
    return SamplingBatch.of(params, [7, 9], torch.device("cpu"), held)


def whole_round(draw: Any, verify: Any, sampling: SamplingBatch, seed: int) -> list[Tensor]:
    """What comes of K tokens drawn from logits, and of the target's."""
    generator = torch.Generator().manual_seed(seed)
    answers = AnswerTokens(
        torch.arange(12).view(2, 6), torch.tensor([[2], [3]]), torch.tensor([[6], [5]]), VOCABULARY
    )
    drawing = Drawing(sampling, answers, None, draw)
    for _ in range(K):
        drawing.draw(2 * torch.randn(2, 1, VOCABULARY, generator=generator))
    proposal = replace(drawing.proposal(), num_drafted=torch.tensor([seed % (K + 1), K]))
    positions = answers.end + torch.arange(K + 1)
    logits = 2 * torch.randn(2, K + 1, VOCABULARY, generator=generator)
    verified = verify(logits, proposal, positions, sampling, answers.penalised_counts(sampling))
    return [proposal.token_ids, verified.sound, verified.num_accepted, verified.token_ids]


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_draw_and_verify_as_the_functions_do(kind: str) -> None:
    drawing, verifying = GraphedFunction(draw, RecordedGraphs()), GraphedFunction(verify, RecordedGraphs())
    for sampling in (batch(KINDS[kind]), batch({**KINDS[kind], "temperature": KINDS[kind]["temperature"] / 2})):
        for seed in range(2 * RECURS):
            expected = whole_round(draw, verify, sampling, seed)
            assert list(map(Tensor.tolist, whole_round(drawing, verifying, sampling, seed))) == list(
                map(Tensor.tolist, expected)
            )
    assert drawing.counts == verifying.counts == GraphCounts(captured=1)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_them_breaks_a_graph(kind: str) -> None:
    compiled = [torch.compile(function, fullgraph=True, backend="aot_eager") for function in (draw, verify)]
    sampling = batch(KINDS[kind])
    for one, other in zip(whole_round(*compiled, sampling, 1), whole_round(draw, verify, sampling, 1), strict=True):
        assert one.tolist() == other.tolist()


def test_only_what_is_new_is_copied() -> None:
    copied: list[Tensor] = []

    class Watched(Tensor):
        """Tells of copies of itself."""

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is Tensor.copy_:
                copied.append(args[1])
            return super().__torch_function__(func, types, args, kwargs)

    graphed = GraphedFunction(lambda one, other: (one + other,), RecordedGraphs())
    kept = torch.ones(2).as_subclass(Watched)
    for _ in range(RECURS):
        graphed(torch.zeros(2), kept)
    for value in range(3):
        fresh = torch.full((2,), float(value)).as_subclass(Watched)
        assert graphed(fresh, kept)[0].tolist() == [value + 1] * 2
        assert sum(one is fresh for one in copied) == 1
        assert not any(one is kept for one in copied)


def test_what_arguments_take_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_function, "MOST_BYTES", 100)
    graphed = GraphedFunction(lambda value: (value + 1,), RecordedGraphs())
    for size in (10, 20, 25):
        for _ in range(RECURS):
            assert graphed(torch.zeros(size))[0].tolist() == [1] * size
    assert (graphed.counts.captured, graphed.counts.missed) == (1, 2)


@pytest.mark.parametrize("kind", ["drawn", "top_k, top_p, min_p", "seeded, top_p"])
def test_with_graphs_a_round_launches_less_than_half_beside_its_forwards(kind: str) -> None:
    device, params = torch.device("cpu"), SamplingParams(**KINDS[kind])
    assert 2 * beside_forwards(device, params, 4, RecordedGraphs()) < beside_forwards(device, params, 4, None)
