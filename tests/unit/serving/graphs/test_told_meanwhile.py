"""On a GPU what a round brought is told, and learnt from, while the next one is computed."""

from typing import Any

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import weights_id
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.decoding import decoder
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.engine.scheduler import RoundPlan
from tests.unit.serving.clients import ask, greedy, request


def computes_aside(config: HotdraftConfig, buffer: ReplayBuffer | None = None, **engine: Any) -> Engine:
    """Rounds by torch, which a device would be given, as if there were one."""
    keys = {**config.engine.model_dump(), "instructions": "none", **engine}
    built = build_engine(config.model_copy(update={"engine": type(config.engine)(**keys)}), buffer)
    built._steps._computes_aside = True
    return built


def test_a_round_is_told_once_the_next_is_launched_and_before_it_is_waited_for(
    config: HotdraftConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = computes_aside(config, k=0)
    client = ask(engine, request("r", max_tokens=4))
    heard: list[int] = []
    received = decoder.received
    monkeypatch.setattr(decoder, "received", lambda tensor: (heard.append(len(client.ids)), received(tensor))[1])
    after = []
    for _ in range(4):
        engine.step()
        after.append(len(client.ids))
    assert heard == [0, 1, 2, 3]
    assert after == [0, 1, 2, 4], "the last one leaves nothing to be computed meanwhile"


@pytest.mark.parametrize("instructions", ["none", "auto"])
@pytest.mark.parametrize("k", [0, 2, "auto"])
def test_answers_and_what_is_learnt_from_them_are_as_without(
    config: HotdraftConfig, buffer: ReplayBuffer, tiny_target: str, k: int | str, instructions: str
) -> None:
    """Also where a round has no time in which to tell of the last."""
    engine = computes_aside(config, buffer, k=k, instructions=instructions)
    engine.start()
    prompts = [tuple(range(1, 2 + 5 * n)) for n in range(9)]
    clients = [ask(engine, request(f"r{n}", p, max_tokens=3 + 4 * n)) for n, p in enumerate(prompts)]
    for n, (prompt, client) in enumerate(zip(prompts, clients, strict=True)):
        assert client.wait().finish_reason == "length"
        assert client.ids == greedy(tiny_target, prompt, 3 + 4 * n)
    recorder = engine.record_with(None)
    assert recorder is not None
    recorder.close()
    engine.stop()
    rows = buffer.rows()
    assert set(rows.table(range(len(rows)))["target_id"].to_pylist()) == {weights_id(tiny_target)}
    assert sorted(len(ids) for ids in rows.table(range(len(rows)))["output_ids"].to_pylist()) == [
        3 + 4 * n for n in range(9)
    ]


def test_a_round_that_fails_takes_nothing_from_what_came_before(config: HotdraftConfig, tiny_target: str) -> None:
    engine = computes_aside(config, k=0)
    client = ask(engine, request("r", max_tokens=9))
    for _ in range(3):
        engine.step()

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory, say")

    engine.decoder.round = fails  # type: ignore[assignment]
    engine.step()
    assert client.deltas[-1].finish_reason == "error"
    assert client.ids == greedy(tiny_target, (1, 2, 3), 3)


def test_who_ended_in_a_round_that_could_not_be_told_hears_an_end(
    config: HotdraftConfig, tiny_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = computes_aside(config, k=0)
    ended, goes_on = (ask(engine, request(f"r{n}", max_tokens=n)) for n in (3, 9))
    learn = engine.scheduler.learn

    def fails(plan: RoundPlan, outcome: Round) -> None:
        if len(ended.ids) == 2:
            monkeypatch.undo()
            raise RuntimeError("out of memory, say")
        learn(plan, outcome)

    monkeypatch.setattr(engine.scheduler, "learn", fails)
    for _ in range(5):
        engine.step()
    assert [client.deltas[-1].finish_reason for client in (ended, goes_on)] == ["error", "error"]
    assert engine.failures["round"] == 1
    after = ask(engine, request("after", max_tokens=3))
    for _ in range(5):
        engine.step()
    assert after.ids == greedy(tiny_target, (1, 2, 3), 3)


def test_who_cancels_has_heard_all_that_came_before(config: HotdraftConfig) -> None:
    engine = computes_aside(config, k=0)
    client = ask(engine, request("r", max_tokens=9))
    engine.step()
    engine.cancel("r")
    engine.step()
    assert [client.deltas[-1].finish_reason, len(client.ids)] == ["cancelled", 1]


def test_a_swap_is_told_after_the_rounds_before_it(config: HotdraftConfig) -> None:
    engine = computes_aside(config, k=0)
    client = ask(engine, request("r", max_tokens=9))
    engine.step()
    heard = engine.between_rounds(lambda: len(client.ids))
    engine.step()
    assert heard.result() == 1
