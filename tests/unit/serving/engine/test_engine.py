"""Requests of different lengths join, leave, stop and are cancelled without disturbing each other."""

import os
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.serving.engine import load
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.k_choice import KChoice
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.engine.waiting import QueueFullError
from hotdraft.serving.messages.events import RoundStats, SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, RequestStats, SamplingParams
from tests.models import tiny_llama, tiny_tokenizer
from tests.unit.serving.clients import Client, ask, greedy, request
from tests.unit.serving.http.scripted import make_tokenizer


def test_many_requests_through_few_slots(engine: Engine, tiny_target: str) -> None:
    prompts = [tuple(range(1, 2 + 5 * n)) for n in range(9)]
    clients = [ask(engine, request(f"r{n}", p, max_tokens=3 + 4 * n)) for n, p in enumerate(prompts)]
    for n, (prompt, client) in enumerate(zip(prompts, clients, strict=True)):
        last = client.wait()
        assert last.finish_reason == "length"
        assert client.ids == greedy(tiny_target, prompt, 3 + 4 * n)
        assert last.stats.completion_tokens == 3 + 4 * n
        assert last.stats.drafted_tokens == 2 * last.stats.rounds
    assert engine.num_running == engine.num_waiting == 0


def test_eos_and_stop_strings_end_the_text(engine: Engine, tiny_target: str) -> None:
    whole = ask(engine, request("whole", max_tokens=40))
    whole.wait()
    assert len(whole.text) > 10
    stop = whole.text[6:9]
    cut = ask(engine, request("cut", max_tokens=40, stop=(stop,)))
    assert cut.wait().finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert all(stop not in delta.text for delta in cut.deltas)


@pytest.mark.parametrize(("stop", "text"), [(None, " there there"), (" there", "")])
def test_an_answer_goes_on_where_its_prompt_ended(config: HotdraftConfig, stop: str | None, text: str) -> None:
    """Some decoders write no space before a first word, which an answer's first is not."""
    engine = build_engine(config, None)
    engine.tokenizer = make_tokenizer()
    [there] = engine.tokenizer("there").input_ids
    client = ask(engine, request("r", max_tokens=2, logit_bias={there: 100}, stop=stop))
    for _ in range(4):
        engine.step()
    assert client.text == text
    assert client.deltas[-1].finish_reason == ("stop" if stop else "length")


def test_cancelling_frees_the_slot(engine: Engine) -> None:
    running = [ask(engine, request(f"long{n}", max_tokens=120)) for n in range(3)]
    waiting = ask(engine, request("waiting", max_tokens=120))
    assert running[0].first.wait(60)
    engine.cancel("waiting")
    engine.cancel("long1")
    assert running[1].wait().finish_reason == "cancelled"
    assert waiting.wait().finish_reason == "cancelled"
    assert waiting.ids == []
    after = ask(engine, request("after", max_tokens=5))
    assert after.wait().finish_reason == "length"
    assert len(running[0].ids) <= 120


def test_bad_requests_are_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="empty"):
        ask(engine, request("empty", ()))
    with pytest.raises(ValueError, match=r"ids outside 0\.\.256"):
        ask(engine, request("unknown", (1, 257)))
    with pytest.raises(ValueError, match=r"logit_bias has token ids outside 0\.\.256"):
        ask(engine, request("biased", (1, 2), logit_bias=((257, 1.0),)))
    with pytest.raises(ValueError, match="maximum context length is 128"):
        ask(engine, request("long", tuple(range(120)), max_tokens=9))
    assert ask(engine, request("exact", tuple(range(119)), max_tokens=9)).wait().finish_reason == "length"


def test_a_full_queue_refuses(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)  # never started: nothing leaves the queue
    for n in range(20):
        ask(engine, request(f"r{n}"))
    with pytest.raises(QueueFullError, match="20 requests"):
        ask(engine, request("one too many"))
    engine.stop()


def test_stopping_tells_every_request(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)
    engine.start()
    clients = [ask(engine, request(f"r{n}", max_tokens=120)) for n in range(6)]
    engine.stop()
    assert {client.wait().finish_reason for client in clients} <= {"cancelled", "length"}
    assert clients[-1].wait().finish_reason == "cancelled"


def test_stopping_an_engine_that_never_started_tells_too(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)
    client = ask(engine, request("r"))
    errand = engine.between_rounds(lambda: None)
    engine.stop()
    assert client.wait().finish_reason == "cancelled"
    with pytest.raises(CancelledError):
        errand.result(1)
    with pytest.raises(CancelledError):
        engine.between_rounds(lambda: None).result(1)


def test_for_who_leaves_the_queue_no_estimates_are_made(
    config: HotdraftConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(KChoice, "new_estimates", lambda _, domain: made.append(domain))
    engine = build_engine(config, None)
    client = ask(engine, request("left"))
    engine.cancel("left")
    engine.step()
    assert client.wait().finish_reason == "cancelled"
    assert made == []


def test_cancelling_who_is_gone_leaves_nothing(engine: Engine) -> None:
    for n in range(50):
        engine.cancel(f"gone{n}")
    deadline = time.monotonic() + 10
    while engine._cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not engine._cancelled


def test_a_prompt_under_way_follows_its_row(config: HotdraftConfig, tiny_target: str) -> None:
    engine = build_engine(config, None)  # not started: the test takes the steps
    prompts = [(1, 2, 3), (4, 5), tuple(range(1, 101))]
    clients = [ask(engine, request(f"r{n}", prompt, max_tokens=5)) for n, prompt in enumerate(prompts)]
    for _ in range(3):
        engine.step()
    assert engine.scheduler.prefilling is not None
    while not (clients[0].done.is_set() and clients[1].done.is_set()):
        assert engine.scheduler.prefilling is not None
        engine.step()
    while not clients[2].done.is_set():
        engine.step()
    for prompt, client in zip(prompts, clients, strict=True):
        assert client.ids == greedy(tiny_target, prompt, 5)


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["other", "itself"])
def test_a_request_may_fill_its_slot(config: HotdraftConfig, tiny_target: str, draft: str) -> None:
    """With 61 + k + 1 = 64 positions in a slot, none are to spare when the last round overshoots."""
    changes = {"engine": config.engine.model_copy(update={"max_model_len": 61})}
    engine = build_engine(
        config.model_copy(update=changes | ({"draft": tiny_target} if draft == "itself" else {})), None
    )
    assert engine.decoder.slots.max_length == 64
    clients = [ask(engine, request(f"r{n}", (7,) * n, max_tokens=61 - n)) for n in (1, 2, 60)]
    while not all(client.done.is_set() for client in clients):
        engine.step()
    for n, client in zip((1, 2, 60), clients, strict=True):
        assert client.ids == greedy(tiny_target, (7,) * n, 61 - n)


class Heard:
    """Notes what listeners hear."""

    def __init__(self) -> None:
        self.new_tokens = self.drafted = 0
        self.finished: list[str] = []

    def on_round(self, stats: RoundStats) -> None:
        self.new_tokens += stats.new_tokens
        self.drafted += stats.proposed_tokens

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        self.finished.append(f"{request.request_id} {finish_reason}")

    def on_swap(self, event: SwapEvent) -> None: ...


def test_a_client_hears_the_end_when_all_is_counted(engine: Engine) -> None:
    heard = Heard()
    engine.listeners.append(heard)
    at_the_end: list[tuple[int, int, list[str], int]] = []
    done = threading.Event()

    def on_delta(delta: OutputDelta) -> None:
        if delta.finish_reason:
            at_the_end.append((heard.new_tokens, heard.drafted, list(heard.finished), engine.num_running))
            assert heard.drafted == delta.stats.drafted_tokens
            done.set()

    engine.submit(request("r", max_tokens=9), on_delta)
    assert done.wait(30)
    ((new_tokens, drafted, finished, running),) = at_the_end
    assert (new_tokens, finished, running) == (9, ["r length"], 0)
    assert drafted > 0


def test_errands_run_between_rounds_and_hand_back_errors(engine: Engine) -> None:
    client = ask(engine, request("r", max_tokens=100))
    assert engine.between_rounds(lambda: threading.current_thread().name).result(30) == "engine"
    with pytest.raises(ValueError, match="mine"):
        engine.between_rounds(_fail).result(30)
    with pytest.raises(KeyError):
        engine.between_rounds(lambda: {}["missing"]).result(30)
    assert client.wait().finish_reason == "length"


def _fail() -> None:
    raise ValueError("mine")


def test_what_is_recorded(engine: Engine, buffer: ReplayBuffer, tiny_target: str) -> None:
    client = ask(engine, request("kept", max_tokens=9))
    secret = Client()
    engine.submit(
        GenerationRequest("secret", (4, 5), SamplingParams(max_tokens=5, temperature=0), record=False), secret
    )
    altered = ask(engine, request("altered", max_tokens=5, presence_penalty=0.5))
    for one in (client, secret, altered):
        one.wait()
    assert engine.recorder is not None
    assert engine.recorder.left_out == {"store": 1, "presence_penalty": 1}
    deadline = time.monotonic() + 20
    while not len(buffer.load()) and time.monotonic() < deadline:
        time.sleep(0.05)
    rows = buffer.load()
    assert rows["request_id"] == ["kept"]
    sample = sample_from_row(rows[0])
    assert sample.output_ids.tolist() == client.ids
    assert sample.target_top_ids.shape == (9, 8)
    # greedy: every emitted token is the target's likeliest, and a drafted token is accepted iff it equals it
    assert sample.target_top_ids[:, 0].tolist() == client.ids
    drafted = sample.drafted_ids >= 0
    assert (sample.accepted[drafted] == (sample.drafted_ids == sample.output_ids)[drafted]).all()
    assert sample.accepted.sum() == client.deltas[-1].stats.accepted_tokens


@pytest.mark.slow
def test_a_draft_of_another_vocabulary_is_refused(config: HotdraftConfig, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    tiny_llama(1, 0).save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["extra"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match="one vocabulary"):
        build_engine(config.model_copy(update={"draft": str(folder)}), None)


def yielding(before: set[str]) -> set[str]:
    """Of the threads that were not there before those that are not as nice as the process."""
    found = set()
    for thread in set(os.listdir("/proc/self/task")) - before:
        with suppress(ProcessLookupError):  # it has ended since
            if os.getpriority(os.PRIO_PROCESS, int(thread)) != os.nice(0):
                found.add(thread)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no thread has a niceness of its own")
def test_the_threads_that_compute_are_as_nice_as_the_process(config: HotdraftConfig) -> None:
    before = set(os.listdir("/proc/self/task"))
    settings = config.engine.model_copy(update={"threads": 3})
    engine = build_engine(config.model_copy(update={"engine": settings}), None)
    deadline = time.monotonic() + 5
    while yielding(before) and time.monotonic() < deadline:  # a thread that was joined takes a moment to go
        time.sleep(0.01)
    assert not yielding(before)
    started = set(os.listdir("/proc/self/task")) - before
    assert engine.decoder.target.runner.computation.runner != "native" or len(started) >= 2


@pytest.mark.parametrize(("said", "threads"), [(None, 2), (3, 3)])
def test_it_computes_with_no_more_threads_than_a_container_may_use_unless_told(
    said: int | None, threads: int, config: HotdraftConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(load, "usable_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: chosen[-1] if chosen else 8)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    settings = config.engine.model_copy(update={"threads": said})
    build_engine(config.model_copy(update={"engine": settings}), None)
    assert chosen[0] == threads
