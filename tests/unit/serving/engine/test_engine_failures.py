"""What fails ends the requests that it is about, and the others have their answers to the token."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.serving.engine.engine import Engine, ShuttingDownError
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.engine.steps import MAX_FAILED_STEPS
from hotdraft.serving.models.fused_runner import FusedRunner
from hotdraft.serving.models.native_runner import NativeRunner
from hotdraft.serving.models.runner import Runner, Window
from hotdraft.serving.models.transformers_runner import TransformersRunner
from tests.unit.serving.clients import Client, ask, greedy, request

POISON = 250
"""A token whose embedding is made NaN."""


def steps_until_done(engine: Engine, clients: list[Client], at_most: int = 200) -> None:
    for _ in range(at_most):
        if all(client.done.is_set() for client in clients):
            return
        engine.step()
    raise AssertionError("somebody never hears the end")


def reasons(clients: list[Client]) -> list[str | None]:
    return [client.deltas[-1].finish_reason for client in clients]


def failing(work: Callable[..., Any], calls: set[int]) -> Callable[..., Any]:
    """`work`, which raises when it is called for the n-th time for any n in `calls`."""
    count = iter(range(10**9))

    def maybe(*args: Any, **kwargs: Any) -> Any:
        if next(count) in calls:
            raise RuntimeError("out of memory, say")
        return work(*args, **kwargs)

    return maybe


def test_a_round_that_fails_ends_its_own_requests(
    config: HotdraftConfig, tiny_target: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One has ended, of another the prompt is being read when it happens, and two wait."""
    engine = build_engine(config, None)
    engine.decoder.round = failing(engine.decoder.round, {5})  # type: ignore[method-assign]
    prompts = [(1, 2, 3), (4, 5), tuple(range(1, 101)), (6,), (8, 9)]
    lengths = [3, 60, 20, 60, 60]
    clients = [
        ask(engine, request(f"r{n}", prompt, max_tokens=length))
        for n, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    engine.k = 0
    while engine.failures["round"] == 0:
        reading = engine.scheduler.prefilling
        engine.step()
    steps_until_done(engine, clients)
    assert reading is not None
    assert reading.request.request_id == "r2"
    assert engine.scheduler.prefilling is None
    assert reasons(clients) == ["length", "error", "length", "length", "length"]
    for n in (0, 2, 3, 4):
        assert clients[n].ids == greedy(tiny_target, prompts[n], lengths[n])
    assert engine.failures == dict.fromkeys(engine.failures, 0) | {"round": 1}
    assert caplog.text.count("Traceback") == 1
    assert "out of memory, say" in caplog.text


def test_a_prompt_that_cannot_be_read_ends_one_request(config: HotdraftConfig, tiny_target: str) -> None:
    engine = build_engine(config, None)
    clients = [ask(engine, request("running", (1, 2, 3), max_tokens=40))]
    engine.step()
    engine.decoder.prefill = failing(engine.decoder.prefill, {2})  # type: ignore[method-assign]
    prompts = [tuple(range(1, 101)), tuple(range(50, 90))]
    clients += [ask(engine, request(f"long{n}", prompt, max_tokens=9)) for n, prompt in enumerate(prompts)]
    steps_until_done(engine, clients)
    assert reasons(clients) == ["length", "error", "length"]
    assert clients[0].ids == greedy(tiny_target, (1, 2, 3), 40)
    assert clients[2].ids == greedy(tiny_target, prompts[1], 9)
    assert engine.failures["prefill"] == 1


def test_no_number_of_odd_requests_ends_the_engine(config: HotdraftConfig, tiny_target: str) -> None:
    engine = build_engine(config, None)
    load = engine.decoder.load

    def picky(row: int, prompt_ids: tuple[int, ...], **kwargs: Any) -> None:
        if 13 in prompt_ids:
            raise RuntimeError("not this one")
        load(row, prompt_ids, **kwargs)

    engine.decoder.load = picky  # type: ignore[method-assign]
    engine.start()
    for n in range(3 * MAX_FAILED_STEPS):
        assert ask(engine, request(f"odd{n}", (1, 13))).wait().finish_reason == "error"
    client = ask(engine, request("even"))
    assert client.wait().finish_reason == "length"
    assert client.ids == greedy(tiny_target, (1, 2, 3), 12)
    assert engine.is_alive
    engine.stop()


@pytest.mark.parametrize("part", ["prefill", "round"])
def test_an_engine_that_works_no_more_ends_and_says_why(config: HotdraftConfig, part: str) -> None:
    engine = build_engine(config, None)
    setattr(engine.decoder, part, failing(getattr(engine.decoder, part), set(range(100))))
    engine.start()
    for n in range(MAX_FAILED_STEPS):
        assert ask(engine, request(f"r{n}")).wait().finish_reason == "error"
    engine._thread.join(10)
    assert not engine.is_alive
    assert engine.fatal_error == "RuntimeError: out of memory, say"
    with pytest.raises(ShuttingDownError):
        ask(engine, request("later"))
    engine.stop()


def test_a_target_that_computes_no_numbers_at_all_ends_the_engine(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)
    with torch.no_grad():
        embedding(engine.decoder.target.runner).fill_(torch.nan)
    engine.start()
    for n in range(MAX_FAILED_STEPS):
        assert ask(engine, request(f"r{n}")).wait().finish_reason == "error"
    engine._thread.join(10)
    assert engine.fatal_error == "UnsoundLogitsError: the target's logits are not numbers, whatever it reads"
    engine.stop()


def embedding(runner: Runner) -> torch.Tensor:
    """Of any kind of runner."""
    if isinstance(runner, NativeRunner):
        return runner._held["embedding"]
    assert isinstance(runner, FusedRunner | TransformersRunner)
    found = runner._embed if isinstance(runner, FusedRunner) else runner._model.get_input_embeddings()
    weight: torch.Tensor = found.weight
    return weight


def poison(runner: Runner) -> None:
    with torch.no_grad():
        embedding(runner)[POISON] = torch.nan


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 1.0, "logprobs": 2},
    ],
    ids=["greedy", "sampled", "filtered"],
)
@pytest.mark.parametrize("target", ["tiny_target", "tiny_neox_target"])
def test_logits_that_are_no_numbers_end_one_row(
    request_fixture: Callable[[str], str],
    config: HotdraftConfig,
    buffer: ReplayBuffer,
    target: str,
    sampling: dict[str, Any],
) -> None:
    """The keys of such a row are NaN; whoever gets its slot next is served as if it had never been."""
    folder = request_fixture(target)
    engine = build_engine(config.model_copy(update={"target": folder}), buffer)
    poison(engine.decoder.target.runner)
    prompts = [(1, 2, 3), (4, POISON, *range(1, 60)), (6, 7)]
    clients = [
        ask(engine, request("a", prompts[0], max_tokens=30)),
        ask(engine, request("bad", prompts[1], max_tokens=30, **sampling)),
        ask(engine, request("b", prompts[2], max_tokens=30)),
    ]
    steps_until_done(engine, clients)
    after = [ask(engine, request(f"after{n}", (9, 1 + n, 8), max_tokens=20)) for n in range(3)]
    steps_until_done(engine, after)
    assert reasons(clients) == ["length", "error", "length"]
    assert clients[1].ids == []
    for n in (0, 2):
        assert clients[n].ids == greedy(folder, prompts[n], 30)
    for n, client in enumerate(after):
        assert client.ids == greedy(folder, (9, 1 + n, 8), 20)
    assert engine.failures["target"] == 1
    engine.stop()
    assert engine.recorder is not None
    engine.recorder.close()
    assert sorted(buffer.load()["request_id"]) == ["a", "after0", "after1", "after2", "b"]


@pytest.fixture
def request_fixture(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return request.getfixturevalue


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 1, "top_k": 5}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("vocabulary", [None, 64], ids=["whole", "trimmed"])
def test_a_draft_that_computes_no_numbers_costs_acceptance_only(
    config: HotdraftConfig, tiny_target: str, sampling: dict[str, Any], vocabulary: int | None
) -> None:
    changes = config.engine.model_copy(update={"num_slots": 1, "draft_vocab_size": vocabulary})
    engine = build_engine(config.model_copy(update={"engine": changes}), None)
    assert engine.decoder.proposer is not None
    before = ask(engine, request("before", (9, 9, 8), max_tokens=20))
    steps_until_done(engine, [before])
    poison(engine.decoder.proposer.runner)
    client = ask(engine, request("bad", (4, POISON, *range(1, 60)), max_tokens=30, **sampling))
    steps_until_done(engine, [client])
    assert client.deltas[-1].finish_reason == "length"
    if not sampling:
        assert client.ids == greedy(tiny_target, (4, POISON, *range(1, 60)), 30)
    assert 1 <= engine.failures["draft"] <= 2
    after = ask(engine, request("after", (9, 9, 8), max_tokens=20))
    steps_until_done(engine, [after])
    assert after.deltas[-1].stats.accepted_tokens == before.deltas[-1].stats.accepted_tokens
    assert after.ids == before.ids
    assert engine.failures["target"] == 0


def test_a_poisoned_prompt_that_is_cancelled_leaves_nothing_behind(
    config: HotdraftConfig, tiny_target: str
) -> None:
    """No round has seen that its keys are NaN."""
    engine = build_engine(config, None)
    poison(engine.decoder.target.runner)
    bad = ask(engine, request("bad", (POISON,) * 40, max_tokens=9))
    engine.step()
    engine.cancel("bad")
    steps_until_done(engine, [bad])
    after = ask(engine, request("after", (9, 8), max_tokens=20))
    steps_until_done(engine, [after])
    assert after.ids == greedy(tiny_target, (9, 8), 20)
    assert engine.failures["target"] == 0


def test_a_probe_of_nan_leaves_the_next_one_sound(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)
    decoder = engine.decoder
    assert decoder.proposer is not None
    expected = decoder.proposer.logits(torch.arange(8)[None], 4)
    poison(decoder.proposer.runner)
    assert decoder.proposer.logits(torch.tensor([[*range(20), POISON]]), 1).isnan().all()
    torch.testing.assert_close(decoder.proposer.logits(torch.arange(8)[None], 4), expected)


def test_a_device_that_fails_in_the_clean_up_too_ends_the_engine_and_everybody_hears(
    config: HotdraftConfig,
) -> None:
    engine = build_engine(config, None)

    def gone(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("the device is gone")

    engine.decoder.target.runner.forward = gone  # type: ignore[method-assign]
    engine.decoder.target.runner.clear = gone  # type: ignore[method-assign]
    clients = [ask(engine, request(f"r{n}", max_tokens=50)) for n in range(6)]
    errand = threading.Event()
    engine.between_rounds(errand.set)
    engine.start()
    assert [client.wait().finish_reason for client in clients] == ["error"] * 6
    engine._thread.join(10)
    assert errand.is_set()
    assert engine.fatal_error == "RuntimeError: the device is gone"
    engine.stop()


def test_a_window_is_read_as_before(config: HotdraftConfig) -> None:
    """Clearing one slot touches no other."""
    for folder in (config.target, config.draft):
        engine = build_engine(config.model_copy(update={"target": folder}), None)
        runner = engine.decoder.target.runner
        positions = torch.arange(8).expand(3, -1)
        ids = torch.arange(24).view(3, 8)
        with torch.inference_mode():
            first = runner.forward(Window(slice(0, 3), positions, 64), ids, 8)
            runner.clear(1)
            following = runner.forward(Window(slice(0, 3), positions[:, -1:], 64), ids[:, -1:], 1)
        torch.testing.assert_close(following[[0, 2]], first[[0, 2], -1:])
        assert not torch.allclose(following[1], first[1, -1:])
