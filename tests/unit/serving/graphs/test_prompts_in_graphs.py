"""Prompts of any length, several at once, in whatever rows: few graphs read them, and the tokens are the same."""

from typing import Any

import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.decoding.build import build_decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.engine import load
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.graphs.recurring import RECURS
from hotdraft.serving.models.runner import Window
from hotdraft.serving.proposers.plan import ProposalPlan
from tests.unit.serving.clients import ask, greedy, request
from tests.unit.serving.decoders import GREEDY, batch
from tests.unit.serving.graphs.recorded import RecordedGraphs
from tests.unit.serving.graphs.test_graphed_runner import decoder

LENGTHS = (40, 3, 57, 22)


def prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple((31 * seed + 7 * at + 3) % 200 + 1 for at in range(length))


@torch.inference_mode()
def test_a_row_of_any_length_is_read_by_the_graph_of_a_larger_one(tiny_target: str, tiny_draft: str) -> None:
    """Wherever it is, and with all that the slots held before in their keys."""
    graphs = RecordedGraphs()
    of, plain = decoder(tiny_target, tiny_draft, graphs), decoder(tiny_target, tiny_draft)
    found = []
    for turn, (row, length) in enumerate(((0, 17), (1, 32), (3, 30), (2, 25), (1, 18))):
        ids, positions = torch.tensor([prompt(turn, length)]), torch.arange(length)[None]
        window = Window(slice(row, row + 1), positions, 64)
        both = [one.target.runner.forward(window, ids, 2) for one in (of, plain)]
        torch.testing.assert_close(*both)
        found.append(graphs.captures)
    assert found == [0, 0, 1, 1, 1]


def drafted(of: SpeculativeDecoder, rows: int) -> list[list[int]]:
    outcome = of.round(ProposalPlan.uniform(rows, 4), batch([GREEDY] * rows), log=False)
    return [outcome.token_ids.tolist(), outcome.num_accepted.tolist()]


@pytest.mark.parametrize("running", [0, 1])
def test_prompts_that_are_read_together_are_read(tiny_target: str, tiny_draft: str, running: int) -> None:
    """Some of them in part before; one wholly."""
    found = []
    for graphs in (None, RecordedGraphs()):
        of = decoder(tiny_target, tiny_draft, graphs)
        for turn in range(RECURS + 1):
            for row, length in enumerate(LENGTHS):
                of.load(row, prompt(turn + row, length))
            of.prefill(3, 9, with_proposer=True)
            of.prefill(1, 9, with_proposer=True)
            together = slice(running, 4) if graphs is not None else slice(0, 0)
            if graphs is not None:
                of.prefill_together(together, with_proposer=True)
            for row in set(range(4)) - set(range(4)[together]):
                while not of.prefill(row, 64, with_proposer=True):
                    pass
            assert not any(of.unread(row, with_proposer=True) for row in range(4))
            found.append(drafted(of, 4))
    assert found[: RECURS + 1] == found[RECURS + 1 :]


@pytest.fixture
def engine(config: HotdraftConfig, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """With graphs, and a chunk of 64; not started: the test takes the steps."""

    def build(*models: Any, **settings: Any) -> SpeculativeDecoder:
        return build_decoder(*models, **{**settings, "instructions": "none", "graphs": RecordedGraphs()})

    monkeypatch.setattr(load, "build_decoder", build)
    engine = config.engine.model_copy(update={"num_slots": 4, "prefill_chunk": 64, "k": 2})
    return load.build_engine(config.model_copy(update={"engine": engine}), None)


def watched(engine: Engine) -> list[tuple[int, ...]]:
    """Rows and tokens of each forward of the target, from now on."""
    runner = engine.decoder.target.runner
    fed: list[tuple[int, ...]] = []
    forward = runner.forward
    runner.forward = lambda window, ids, keep: fed.append(tuple(ids.shape)) or forward(window, ids, keep)  # type: ignore[method-assign]
    return fed


def test_who_waits_is_read_with_the_next_as_far_as_a_chunk_goes(engine: Engine, tiny_target: str) -> None:
    """What is short beside a long prompt takes as much of it; who could copy most of another's waits for that."""
    prompts = [prompt(1, 21), prompt(2, 12), prompt(3, 17), prompt(4, 40), (*prompt(4, 38), 9)]
    fed = watched(engine)
    clients = [ask(engine, request(f"r{n}", one, max_tokens=9)) for n, one in enumerate(prompts)]
    engine.step()
    assert fed[:-1] == [(3, 20)]
    assert len(engine.scheduler.running) == 3
    while not all(client.done.is_set() for client in clients):
        engine.step()
    assert [shape for shape in fed if shape[1] > 3] == [(3, 20), (1, 39)]
    for one, client in zip(prompts, clients, strict=True):
        assert client.ids == greedy(tiny_target, one, 9)


@pytest.mark.parametrize("fails", ["load", "prefill"])
def test_one_that_cannot_be_read_ends_alone(engine: Engine, tiny_target: str, fails: str) -> None:
    odd, decoder = prompt(5, 13), engine.decoder
    load, prefill, together = decoder.load, decoder.prefill, decoder.prefill_together
    loaded: dict[int, tuple[int, ...]] = {}

    def picky_load(row: int, prompt_ids: tuple[int, ...], **kwargs: Any) -> None:
        if fails == "load" and prompt_ids == odd:
            raise RuntimeError("not this one")
        loaded[row] = prompt_ids
        load(row, prompt_ids, **kwargs)

    def picky_prefill(row: int, *args: Any, **kwargs: Any) -> bool:
        if loaded[row] == odd:
            raise RuntimeError("not this one")
        return prefill(row, *args, **kwargs)

    def picky_together(rows: slice, **kwargs: Any) -> None:
        if odd in [loaded[row] for row in range(rows.start, rows.stop)]:
            raise RuntimeError("not these")
        together(rows, **kwargs)

    decoder.load, decoder.prefill, decoder.prefill_together = picky_load, picky_prefill, picky_together  # type: ignore[method-assign]
    prompts = [prompt(6, 15), odd, prompt(7, 14)]
    clients = [ask(engine, request(f"r{n}", one, max_tokens=9)) for n, one in enumerate(prompts)]
    for _ in range(60):
        engine.step()
    assert [client.wait().finish_reason for client in clients] == ["length", "error", "length"]
    for n in (0, 2):
        assert clients[n].ids == greedy(tiny_target, prompts[n], 9)
    assert engine.failures["prefill"] == {"load": 1, "prefill": 2}[fails]


@pytest.mark.parametrize("k", [2, "auto"])
def test_an_engine_has_recorded_its_rounds_when_it_has_started(engine: Engine, k: int | str) -> None:
    engine.k_choice._k = k  # type: ignore[assignment]
    engine.start()
    try:
        recorded = engine.graphs.captured
        assert recorded > 20
        clients = [ask(engine, request(f"r{n}", prompt(n, 20), max_tokens=9)) for n in range(3)]
        assert all(client.done.wait(60) for client in clients)
        assert engine.graphs.captured == recorded
    finally:
        engine.stop()
