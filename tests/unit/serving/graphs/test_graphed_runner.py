"""Graphs change no token, and what cannot be one is computed as before. A stand-in for CUDA's records them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.graphs import graphed_runner
from hotdraft.serving.graphs.graphed_runner import RECURS, GraphCounts, GraphedRunner
from hotdraft.serving.graphs.graphs import Captured
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.runner import Window
from hotdraft.serving.proposers.plan import ProposalPlan
from tests.unit.serving.decoders import GREEDY, PROMPTS, batch, load, run, start

DRAWN = SamplingParams(temperature=0.8, seed=3)


class RecordedGraphs:
    """As CUDA's: a replay computes from and into the same memory, and returns nothing."""

    def __init__(self, spoil: Callable[[Tensor], Tensor] = lambda result: result) -> None:
        self.captures = self.replays = 0
        self._spoil = spoil

    def capture(self, work: Callable[[], Tensor]) -> Captured:
        self.captures += 1
        result = self._spoil(work().clone())

        def replay() -> None:
            self.replays += 1
            result.copy_(self._spoil(work()))

        return Captured(result, replay)


class NoGraphs:
    def capture(self, work: Callable[[], Tensor]) -> Captured:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")


def decoder(target: str, draft: str, graphs: object = None) -> SpeculativeDecoder:
    return build_decoder(
        load(target),
        load(draft),
        num_slots=len(PROMPTS),
        max_model_len=100,
        max_k=4,
        log_top_k=8,
        instructions="none",
        graphs=None if graphs is None else lambda: graphs,  # type: ignore[arg-type,return-value]
    )


def counts(of: SpeculativeDecoder) -> list[GraphCounts]:
    runners = [of.target.runner, of.proposer.runner]  # type: ignore[union-attr]
    return [runner.counts for runner in runners if isinstance(runner, GraphedRunner)]


def answers(of: SpeculativeDecoder, params: SamplingParams, rows: int) -> list[list[int]]:
    start(of, PROMPTS[:rows])
    return run(of, [4, 0, 2], batch([params] * rows), rows)


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("target", ["tiny_target", "tiny_neox_target"])
def test_answers_are_those_without_graphs(
    tiny_draft: str, target: str, rows: int, params: SamplingParams, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(target)
    graphs = RecordedGraphs()
    graphed = decoder(path, tiny_draft, graphs)
    assert answers(graphed, params, rows) == answers(decoder(path, tiny_draft), params, rows)
    assert 0 < 2 * graphs.captures < graphs.replays
    assert [(one.dropped, one.missed) for one in counts(graphed)] == [(0, 0)] * 2
    replays = graphs.replays
    assert answers(graphed, params, rows) == answers(decoder(path, tiny_draft), params, rows)
    assert graphs.replays > 2 * replays, "what was recorded serves the next requests too"


def test_a_prompt_that_is_read_meanwhile_is_left_alone(tiny_target: str, tiny_draft: str) -> None:
    """Three rows are run as four, and the fourth is a request whose prompt is not read yet."""
    found = []
    for graphs in (None, RecordedGraphs()):
        of = decoder(tiny_target, tiny_draft, graphs)
        start(of, PROMPTS[:3])
        of.load(3, list(range(100, 140)))
        assert not of.prefill(3, 16, with_proposer=True)
        run(of, [4], batch([GREEDY] * 3), 3)
        while not of.prefill(3, 16, with_proposer=True):
            pass
        outcome = of.round(ProposalPlan.uniform(4, 4), batch([GREEDY] * 4), log=False)
        found.append((outcome.token_ids.tolist(), outcome.num_accepted.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("graphs", "says"),
    [
        (NoGraphs(), "not permitted when stream is capturing"),
        (RecordedGraphs(lambda result: result.roll(1, -1)), "differs by"),
        (RecordedGraphs(lambda result: torch.full_like(result, torch.nan)), "differs by nan"),
    ],
    ids=["cannot be recorded", "computes something else", "computes no numbers"],
)
def test_what_does_not_do_as_a_graph_is_computed_without(
    tiny_target: str, tiny_draft: str, graphs: object, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    of = decoder(tiny_target, tiny_draft, graphs)
    assert answers(of, GREEDY, 2) == answers(decoder(tiny_target, tiny_draft), GREEDY, 2)
    for one in counts(of):
        assert one.captured == 0
        assert 0 < one.dropped < one.missed
        assert len([record for record in caplog.records if says in record.message]) >= one.dropped


def test_graphs_are_bounded(tiny_target: str, tiny_draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_runner, "MOST_GRAPHS", 1)
    of = decoder(tiny_target, tiny_draft, RecordedGraphs())
    assert answers(of, GREEDY, 2) == answers(decoder(tiny_target, tiny_draft), GREEDY, 2)
    assert all(one.captured == 1 and one.missed for one in counts(of))


@torch.inference_mode()
def test_a_graph_computes_with_the_weights_that_were_swapped_in(tiny_target: str, tiny_draft: str) -> None:
    runner = decoder(tiny_target, tiny_draft, RecordedGraphs()).proposer.runner  # type: ignore[union-attr]
    window, ids = Window(slice(0, 2), torch.tensor([[3], [4]]), 64), torch.tensor([[5], [6]])
    for _ in range(RECURS):
        before = runner.forward(window, ids, 1)
    assert runner.counts == GraphCounts(captured=1)
    places = [linear.weight.data_ptr() for linear in runner.linears]
    generator = torch.Generator().manual_seed(0)
    for linear in runner.linears:
        weights = linear.weights()
        noisy = {name: w + torch.randn(w.shape, generator=generator) for name, w in weights.items()}
        linear.install(linear.prepare(noisy))
    assert [linear.weight.data_ptr() for linear in runner.linears] == places
    after = runner.forward(window, ids, 1)
    assert runner.counts == GraphCounts(captured=1), "its graph was there already"
    assert (after - before).abs().max() > 1
    torch.testing.assert_close(after, runner._runner.forward(window, ids, 1))


@torch.inference_mode()
def test_a_result_outlives_the_next_forward(tiny_target: str, tiny_draft: str) -> None:
    runner = decoder(tiny_target, tiny_draft, RecordedGraphs()).target.runner
    window = Window(slice(0, 1), torch.tensor([[3]]), 64)
    for _ in range(RECURS):
        runner.forward(window, torch.tensor([[4]]), 1)
    first = runner.forward(window, torch.tensor([[5]]), 1)
    kept = first.clone()
    runner.forward(window, torch.tensor([[6]]), 1)
    assert torch.equal(first, kept)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3])
def test_a_forward_has_nothing_that_breaks_a_graph(tiny_target: str, tiny_draft: str, rows: int) -> None:
    runner = decoder(tiny_target, tiny_draft).target.runner
    ids, positions = torch.arange(3 * rows).view(rows, 3), torch.arange(3).expand(rows, 3).contiguous()
    window = Window(slice(0, rows), positions, 64)

    def forward(token_ids: Tensor) -> Tensor:
        return runner.forward(window, token_ids, 2)

    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids), forward(ids))
