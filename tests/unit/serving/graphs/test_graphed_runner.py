"""Graphs change no token, and what cannot be one is computed as before."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from hotdraft.gpu_check.checks.decoding import EagerGraphs
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.costs import profile_costs, rows_to_measure
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.graphs import recurring
from hotdraft.serving.graphs.graphs import Captured, Graphs
from hotdraft.serving.graphs.recurring import RECURS, GraphCounts
from hotdraft.serving.messages.request import SamplingParams
from hotdraft.serving.models.runner import Window
from hotdraft.serving.proposers.plan import ProposalPlan
from tests.unit.serving.decoders import GREEDY, PROMPTS, batch, load, run, start
from tests.unit.serving.graphs.recorded import RecordedGraphs

DRAWN = [
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=0.9, top_p=0.9),
    SamplingParams(temperature=0, presence_penalty=0.5, logit_bias=((3, 1.5),)),
    SamplingParams(temperature=1.1, eta_cutoff=0.01),
]


def another(result: Tensor) -> Tensor:
    return result.roll(1, -1) if result.dtype.is_floating_point else result + 1


class DeafGraphs(EagerGraphs):
    """Whose graphs are empty, as those are that were recorded on another device's stream."""

    def capture(self, work: Callable[[], Sequence[Tensor]]) -> Captured:
        return Captured(super().capture(work).results, lambda: None)


class NoGraphs:
    def capture(self, work: Callable[[], Sequence[Tensor]]) -> Captured:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")


def decoder(
    target: str, draft: str, graphs: Graphs | None = None, vocabulary: Tensor | None = None
) -> SpeculativeDecoder:
    return build_decoder(
        load(target),
        load(draft),
        num_slots=len(PROMPTS),
        max_model_len=100,
        max_k=4,
        log_top_k=8,
        instructions="none",
        graphs=graphs,
        draft_vocabulary=vocabulary,
    )


def counts(of: SpeculativeDecoder) -> list[GraphCounts]:
    return [part.counts for part in of.graphed.values()]


def answers(of: SpeculativeDecoder, params: Sequence[SamplingParams], rows: int) -> list[list[int]]:
    start(of, PROMPTS[:rows])
    return run(of, [4, 0, 2], batch(params[:rows]), rows)


@pytest.mark.parametrize("params", [[GREEDY] * 4, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("target", ["tiny_target", "tiny_neox_target"])
def test_answers_are_those_without_graphs(
    tiny_draft: str, target: str, rows: int, params: Sequence[SamplingParams], request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(target)
    graphs = RecordedGraphs()
    graphed = decoder(path, tiny_draft, graphs)
    expected = answers(decoder(path, tiny_draft), params, rows)
    assert answers(graphed, params, rows) == expected
    assert 0 < 2 * graphs.captures < graphs.replays
    assert [(one.dropped, one.missed) for one in counts(graphed)] == [(0, 0)] * 5
    for _ in range(RECURS):
        assert answers(graphed, params, rows) == expected
    captures, replays = graphs.captures, graphs.replays
    assert answers(graphed, params, rows) == expected
    assert graphs.captures == captures, "what was recorded serves the next requests too"
    assert graphs.replays > replays


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


def test_what_a_draft_has_missed_brings_few_graphs(tiny_target: str, tiny_draft: str) -> None:
    """Of as many lengths as it rested rounds: they are read as powers of two, and steps are the same."""
    of = decoder(tiny_target, tiny_draft, RecordedGraphs())
    start(of, PROMPTS[:1])
    for rested in range(14):
        for _ in range(RECURS):
            of.rewind(0, len(PROMPTS[0]))
            run(of, [0] * rested + [2], batch([GREEDY]), 1)
    assert of.graphed["drafting"].counts == GraphCounts(captured=1)
    assert of.graphed["draft"].counts == GraphCounts(captured=2), "of eight and sixteen tokens"


@pytest.mark.parametrize(
    ("graphs", "says"),
    [
        (NoGraphs(), "not permitted when stream is capturing"),
        (RecordedGraphs(another), "differs by"),
        (RecordedGraphs(lambda result: result * torch.nan), "differs by nan"),
        (DeafGraphs(), "differs by"),
    ],
    ids=["cannot be recorded", "computes something else", "computes no numbers", "computes nothing"],
)
def test_what_does_not_do_as_a_graph_is_computed_without(
    tiny_target: str, tiny_draft: str, graphs: Graphs, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    of = decoder(tiny_target, tiny_draft, graphs)
    for params in (DRAWN, [GREEDY] * 2):
        assert answers(of, params, 2) == answers(decoder(tiny_target, tiny_draft), params, 2)
    for one in counts(of):
        assert one.captured == 0
        assert 0 < one.dropped < one.missed
        assert len([record for record in caplog.records if says in record.message]) >= one.dropped


@pytest.mark.parametrize("vocabulary", [None, torch.arange(0, 200, 2)], ids=["whole head", "trimmed head"])
def test_greedy_rounds_are_recorded_before_the_first(
    tiny_target: str, tiny_draft: str, vocabulary: Tensor | None
) -> None:
    """Whatever rows there are, and whether their tokens are drafted, guessed, or were missed by the draft."""
    graphs = RecordedGraphs()
    of = decoder(tiny_target, tiny_draft, graphs, vocabulary)
    assert of.round_graphs is not None
    of.round_graphs.record()
    captures = graphs.captures
    assert captures
    plain = decoder(tiny_target, tiny_draft, vocabulary=vocabulary)
    for rows in range(1, len(PROMPTS) + 1):
        plans = [ProposalPlan.uniform(rows, k) for k in (4, 0, 2, 0, 1)]
        plans.append(ProposalPlan([(3, 4, 5)] * rows, [1] * rows))
        found = []
        for one in (of, plain):
            start(one, [list(range(first, first + 20 + 10 * first)) for first in range(rows)], chunk=64)
            sampling = batch([GREEDY] * rows)
            found.append([one.round(plan, sampling, log=False).token_ids.tolist() for plan in plans])
        assert found[0] == found[1]
    assert graphs.captures == captures
    assert [(part.dropped, part.missed) for part in counts(of)] == [(0, 0)] * 5
    assert not of.graphed["drawing"].counts.captured


def test_where_costs_are_measured_nothing_is_recorded_again(tiny_target: str, tiny_draft: str) -> None:
    graphs = RecordedGraphs()
    of = decoder(tiny_target, tiny_draft, graphs)
    assert of.round_graphs is not None
    of.round_graphs.record()
    captures = graphs.captures
    profile_costs(of, rows_to_measure(len(PROMPTS)), 4)
    assert graphs.captures == captures


def test_prompts_read_together_are_recorded_also_of_a_draft_that_holds_less_than_its_target(
    tiny_target: str, tiny_draft: str
) -> None:
    graphs = RecordedGraphs()
    of = build_decoder(
        load(tiny_target),
        load(tiny_draft),
        num_slots=4,
        max_model_len=400,
        max_k=4,
        log_top_k=8,
        instructions="none",
        graphs=graphs,
        draft_window=32,
    )
    assert of.round_graphs is not None
    of.round_graphs.record()
    captures = graphs.captures
    for turn in range(RECURS):
        for row in range(3):
            of.load(row, [(31 * turn + 7 * at + row) % 200 for at in range(20)])
        of.prefill_together(slice(0, 3), with_proposer=True)
    assert graphs.captures == captures


def test_a_prompt_that_fills_its_keys_is_recorded_before_the_first(tiny_target: str, tiny_draft: str) -> None:
    graphs = RecordedGraphs()
    models = load(tiny_target), load(tiny_draft)
    of = build_decoder(
        *models, num_slots=2, max_model_len=400, max_k=4, log_top_k=8, instructions="none", graphs=graphs
    )
    assert of.round_graphs is not None
    of.round_graphs.record()
    captures = graphs.captures
    for turn in range(RECURS):
        of.load(0, [(31 * turn + 7 * at) % 200 for at in range(200)])
        of.prefill(0, 256, with_proposer=True)
    assert graphs.captures == captures


def test_logits_of_all_graphs_share_their_memory(tiny_target: str, tiny_draft: str) -> None:
    of = decoder(tiny_target, tiny_draft, RecordedGraphs())
    assert of.round_graphs is not None
    runner, results = of.round_graphs.target, set()
    inner = runner._graphs.record

    def watched(*args: Any) -> Captured | None:
        results.update(result.untyped_storage().data_ptr() for result in args[1]())
        return inner(*args)

    runner._graphs.record = watched  # type: ignore[method-assign]
    of.round_graphs.record()
    assert len(results) == 1


@pytest.mark.parametrize("vocabulary", [None, torch.arange(0, 200, 2)], ids=["whole head", "trimmed head"])
def test_greedy_tokens_are_drafted_in_one_launch(
    tiny_target: str, tiny_draft: str, vocabulary: Tensor | None
) -> None:
    graphs = RecordedGraphs()
    of, plain = (decoder(tiny_target, tiny_draft, one, vocabulary) for one in (graphs, None))
    for one in (of, plain):
        start(one, PROMPTS[:3])
    sampling = batch([GREEDY] * 3)
    for _ in range(RECURS):
        of.propose(ProposalPlan.uniform(3, 4), sampling)
    replays = graphs.replays
    found, expected = (one.propose(ProposalPlan([()] * 3, [4, 0, 2]), sampling) for one in (of, plain))
    assert graphs.replays == replays + 1
    assert found.num_drafted.tolist() == expected.num_drafted.tolist() == [4, 0, 2]
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.sound.all()


def test_a_draft_that_is_no_number_is_seen_in_one_launch(tiny_target: str, tiny_draft: str) -> None:
    of = decoder(tiny_target, tiny_draft, RecordedGraphs())
    start(of, PROMPTS[:2])
    of.proposer.runner._runner._kv[0, 1] = torch.nan  # type: ignore[union-attr]
    for _ in range(RECURS + 1):
        proposal = of.propose(ProposalPlan.uniform(2, 4), batch([GREEDY] * 2))
        assert proposal.sound.tolist() == [[True], [False]]


def test_a_probe_records_no_graph(tiny_target: str, tiny_draft: str) -> None:
    graphs = RecordedGraphs()
    of = decoder(tiny_target, tiny_draft, graphs)
    for _ in range(RECURS + 1):
        of.proposer.logits(torch.arange(32)[None], 8)  # type: ignore[union-attr]
    assert graphs.captures == 0


def test_graphs_are_bounded(tiny_target: str, tiny_draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurring, "MOST_GRAPHS", 1)
    of = decoder(tiny_target, tiny_draft, RecordedGraphs())
    for params in (DRAWN, [GREEDY] * 2):
        assert answers(of, params, 2) == answers(decoder(tiny_target, tiny_draft), params, 2)
    assert [one.captured for one in counts(of)] == [1] * 5
    assert all(of.graphed[name].counts.missed for name in ("target", "draft", "drafting", "verifying"))


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


def test_what_a_trimmed_head_covers_is_known_to_graphs_that_were_recorded_before(
    tiny_target: str, tiny_draft: str
) -> None:
    found = []
    for graphs in (None, RecordedGraphs()):
        of = decoder(tiny_target, tiny_draft, graphs, torch.arange(0, 200, 2))
        before = answers(of, DRAWN, 3)
        head = of.proposer.runner.head  # type: ignore[union-attr]
        other = torch.arange(1, 201, 2)
        head.install(other, head.prepare(other))
        proposed = of.propose(ProposalPlan.uniform(3, 4), batch(DRAWN[:3])).token_ids
        assert (proposed % 2 == 1).all()
        found.append((before, proposed.tolist()))
    assert found[0] == found[1]


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
@pytest.mark.parametrize("target", ["tiny_target", "tiny_neox_target"])
def test_a_forward_has_nothing_that_breaks_a_graph(
    tiny_draft: str, target: str, rows: int, request: pytest.FixtureRequest
) -> None:
    runner = decoder(request.getfixturevalue(target), tiny_draft).target.runner
    ids, positions = torch.arange(3 * rows).view(rows, 3), torch.arange(3).expand(rows, 3).contiguous()
    window = Window(slice(0, rows), positions, 64)

    def forward(token_ids: Tensor) -> Tensor:
        return runner.forward(window, token_ids, 2)

    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids), forward(ids))
