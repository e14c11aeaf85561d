"""Who hears of what, in which order; and that who cannot listen or be told keeps nothing from the others."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer, sample_from_row
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.serving.decoding.rounds import Round
from hotdraft.serving.engine.detokenizer import Detokenizer
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.failures import Failures
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.engine.output import Output
from hotdraft.serving.engine.output_thread import OutputThread
from hotdraft.serving.engine.recorder import Recorder
from hotdraft.serving.messages.events import RoundStats, SwapEvent
from hotdraft.serving.messages.request import (
    FinishReason,
    GenerationRequest,
    OutputDelta,
    RequestStats,
    SamplingParams,
)
from hotdraft.serving.sampling.target_log import TargetLog
from tests.models import tiny_tokenizer
from tests.unit.serving.clients import Client, ask, request
from tests.unit.serving.rounds import a_round

TOKENIZER = tiny_tokenizer()


class Diary:
    """Notes, as listener, recorder and client, what it hears and in which thread."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.threads: set[str] = set()

    def note(self, entry: str) -> None:
        self.heard.append(entry)
        self.threads.add(threading.current_thread().name)

    def on_round(self, stats: RoundStats) -> None:
        self.note(f"round of {stats.drafts}")

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        self.note(f"{request.request_id} counted: {finish_reason}, {stats.completion_tokens} tokens")

    def on_swap(self, event: SwapEvent) -> None:
        self.note(f"swap to {event.version}")

    def record(self, sample: ReplaySample, states: object = None) -> None:
        self.note(f"{sample.request_id} recorded: {len(sample.output_ids)} tokens")

    def client(self, name: str) -> Callable[[OutputDelta], None]:
        return lambda delta: self.note(f"{name} told: {delta.text!r} {delta.finish_reason}")


def output(diary: Diary, name: str, *, keeps_states: bool = False, **params: object) -> Output:
    wanted = GenerationRequest(name, (1, 2), SamplingParams(**{"max_tokens": 100, **params}))
    detokenizer = Detokenizer(TOKENIZER.backend_tokenizer, frozenset())
    return Output(wanted, diary.client(name), detokenizer, keeps_states=keeps_states)


def tell(
    outputs: OutputThread, of: Output, text: str, reason: FinishReason | None = None, taken: int | None = None
) -> None:
    token_ids = TOKENIZER(text).input_ids
    stats = RoundStats(len(token_ids) - 1, 1, 0, 0, (), 0, 0, len(token_ids), 0.1, 1)
    advance = (len(token_ids) if taken is None else taken, reason)
    outputs.round(stats, a_round(token_ids, log=True), [of], [advance])


@pytest.mark.parametrize("in_a_thread", [True, False])
def test_the_order_of_telling(in_a_thread: bool) -> None:
    diary: Any = Diary()
    outputs = OutputThread(diary, Failures())
    outputs.listeners.append(diary)
    if in_a_thread:
        outputs.start()
    a, b = output(diary, "a"), output(diary, "b", stop=("yz",))
    tell(outputs, a, "hi")
    outputs.swap(SwapEvent(5, 4, "promotion", 0.0))
    tell(outputs, b, "xyzzy")
    tell(outputs, a, "!??", "length", taken=1)
    tell(outputs, b, "never heard")
    outputs.finish(b, "cancelled")
    outputs.finish(output(diary, "c"), "cancelled")
    outputs.stop()
    assert diary.heard == [
        "round of 1",
        "a told: 'hi' None",
        "swap to 5",
        "round of 1",
        "b recorded: 3 tokens",
        "b counted: stop, 3 tokens",
        "b told: 'x' stop",
        "round of 1",
        "a recorded: 3 tokens",
        "a counted: length, 3 tokens",
        "a told: '!' length",
        "round of 1",
        "c counted: cancelled, 0 tokens",
        "c told: '' cancelled",
    ]
    assert diary.threads == {"engine-output" if in_a_thread else "MainThread"}


def dropped(outputs: OutputThread, of: Output) -> None:
    outputs.finish(of, "cancelled")


def ended_by_the_next_round(outputs: OutputThread, of: Output) -> None:
    tell(outputs, of, "never heard", "length")


@pytest.mark.parametrize("row_ends", [dropped, ended_by_the_next_round])
def test_what_ends_by_a_stop_string_is_recorded_once_its_row_has_given_its_states(
    row_ends: Callable[[OutputThread, Output], None],
) -> None:
    diary: Any = Diary()
    outputs = OutputThread(diary, Failures())
    one = output(diary, "a", keeps_states=True, stop=("yz",))
    tell(outputs, one, "xyzzy")
    tell(outputs, one, "its row goes on")
    assert diary.heard == ["a told: 'x' stop"]
    for ended in (row_ends, dropped):
        ended(outputs, one)
        assert diary.heard == ["a told: 'x' stop", "a recorded: 3 tokens"]


class Slow(queue.SimpleQueue):
    """Takes its time to put what is no end."""

    def __init__(self) -> None:
        self.is_putting = threading.Event()

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        if item is not None:
            self.is_putting.set()
            time.sleep(0.3)
        super().put(item, block, timeout)


def test_what_is_asked_for_while_it_ends_is_done() -> None:
    outputs, slow = OutputThread(None, Failures()), Slow()
    outputs._tasks = slow
    outputs.start()
    told = threading.Thread(target=lambda: exchanged.append(outputs.record_with(None)))
    exchanged: list[Future[Recorder | None]] = []
    told.start()
    assert slow.is_putting.wait(10)
    outputs.stop()
    told.join(10)
    assert exchanged[0].result(10) is None


class Broken(Diary):
    """Raises whenever it hears of a request's end."""

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        raise RuntimeError("mine")


def test_a_listener_that_raises_keeps_nothing_from_the_others(
    config: HotdraftConfig, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build_engine(config, None)
    diary = Diary()
    engine.listeners += [Broken(), diary]
    clients = [ask(engine, request(f"r{n}", max_tokens=9)) for n in range(5)]
    engine.start()
    assert [client.wait().finish_reason for client in clients] == ["length"] * 5
    assert engine.is_alive
    engine.stop()
    assert [entry for entry in diary.heard if "counted" in entry] == [
        f"r{n} counted: length, 9 tokens" for n in range(5)
    ]
    assert engine.failures["listener"] == 5
    assert caplog.text.count("listener failed, Broken misses something: RuntimeError: mine") == 1


class Mute:
    """A tokenizer that cannot decode one token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        if self.token in ids:
            raise ValueError("no such token")
        return TOKENIZER.decode(ids, skip_special_tokens=skip_special_tokens)


@pytest.mark.parametrize("text", ["ab", "ba", "b"])
def test_a_row_that_cannot_be_told_ends_alone_and_its_client_hears_it(text: str) -> None:
    """Decoding fails at a token that came, and again when what was held is to be sent."""
    diary: Any = Diary()
    failures = Failures()
    outputs = OutputThread(diary, failures)
    outputs.listeners.append(diary)
    wanted = GenerationRequest("a", (1, 2), SamplingParams(max_tokens=100))
    broken: Any = Mute(TOKENIZER("b").input_ids[0])
    rows = [Output(wanted, diary.client("a"), Detokenizer(broken, frozenset())), output(diary, "b")]
    token_ids = TOKENIZER(text).input_ids
    both = join(a_round(token_ids, log=True), a_round(token_ids, log=True))
    stats = RoundStats(len(token_ids) - 1, 2, 0, 0, (), 0, 0, 2 * len(token_ids), 0.1, 1)
    outputs.round(stats, both, rows, [(len(token_ids), "length")] * 2)
    told = [entry for entry in diary.heard if "told" in entry]
    assert told == ["a told: '' error", f"b told: {text!r} length"]
    assert next(entry for entry in diary.heard if entry.startswith("a ")).startswith("a counted: error")
    assert [entry for entry in diary.heard if "recorded" in entry] == [f"b recorded: {len(token_ids)} tokens"]
    assert failures.counts["output"] == 2


def join(one: Round, other: Round) -> Round:
    """Two rounds of one row as one of two."""
    logs = [one.target_log, other.target_log]
    fields = {
        name: np.concatenate([getattr(one, name), getattr(other, name)])
        for name in (
            "token_ids",
            "num_accepted",
            "came",
            "num_alternatives",
            "proposed_ids",
            "num_guessed",
            "target_is_sound",
            "draft_is_sound",
        )
    }
    log = TargetLog(
        *(np.concatenate([getattr(log, name) for log in logs])
          for name in ("top_ids", "top_logprobs", "tail_logprob", "token_logprobs"))
    )  # fmt: skip
    return Round(**fields, target_log=log)


def test_a_sample_that_cannot_be_kept_costs_its_client_nothing() -> None:
    class Full(Diary):
        def record(self, sample: ReplaySample, states: object = None) -> None:
            raise ValueError("cannot be written")

    diary: Any = Full()
    failures = Failures()
    outputs = OutputThread(diary, failures)
    tell(outputs, output(diary, "a"), "hi", "length")
    assert diary.heard == ["a told: 'hi' length"]
    assert failures.counts["record"] == 1


class Leaving(Client):
    """Raises when it hears its second delta, or its last."""

    def __init__(self, at_the_end: bool) -> None:
        super().__init__()
        self.at_the_end = at_the_end

    def __call__(self, delta: OutputDelta) -> None:
        super().__call__(delta)
        if bool(delta.finish_reason) if self.at_the_end else len(self.deltas) == 2:
            raise ValueError("gone")


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_client_that_raises_ends_its_own_request_only(
    config: HotdraftConfig, caplog: pytest.LogCaptureFixture, at_the_end: bool
) -> None:
    engine = build_engine(config, None)  # not started: the test takes the steps
    diary = Diary()
    engine.listeners.append(diary)
    leaving = Leaving(at_the_end)
    engine.submit(request("leaving", max_tokens=30), leaving)
    others = [ask(engine, request(f"r{n}", max_tokens=60)) for n in range(2)]
    while not all(client.done.is_set() for client in others):
        engine.step()
    assert [len(client.ids) for client in others] == [60, 60]
    assert "request leaving ends: its callback raised" in caplog.text
    counted = [entry for entry in diary.heard if entry.startswith("leaving")]
    if at_the_end:
        assert counted == ["leaving counted: length, 30 tokens"]
    else:
        assert len(leaving.deltas) == 2
        assert counted == [f"leaving counted: error, {len(leaving.ids)} tokens"]
        assert len(leaving.ids) < 30
    engine.step()
    assert engine.num_running == 0


def test_a_client_that_raises_as_the_engine_stops(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)
    engine.submit(request("leaving"), Leaving(at_the_end=True))
    other = ask(engine, request("other"))
    engine.stop()
    assert other.wait().finish_reason == "cancelled"


def test_a_stop_string_frees_the_slot(config: HotdraftConfig) -> None:
    engine = build_engine(config, None)  # not started: the test takes the steps
    whole = ask(engine, request("whole", max_tokens=40))
    while not whole.done.is_set():
        engine.step()
    cut = ask(engine, request("cut", max_tokens=40, stop=(whole.text[5:7],)))
    while not cut.done.is_set():
        assert engine.num_running == 1 or not cut.deltas
        engine.step()
    assert len(cut.ids) < 40
    engine.step()
    assert engine.num_running == 0


@pytest.mark.parametrize("k", [0, 2])
def test_what_follows_a_stop_string_is_never_told(config: HotdraftConfig, buffer: ReplayBuffer, k: int) -> None:
    """The output thread meets it while the engine already runs further rounds of the request."""
    engine = build_engine(config, buffer)
    engine.start()
    engine.k = k
    whole = ask(engine, request("whole", max_tokens=100))
    whole.wait()
    hold = Hold()
    engine.listeners.append(hold)
    stop = whole.text[20:24]
    cut = ask(engine, request("cut", max_tokens=100, stop=(stop,)))
    other = ask(engine, request("other", max_tokens=100))
    assert hold.rounds_missed(engine, 30), "the engine runs ahead of what is told"
    hold.release.set()
    last = cut.wait()
    assert (last.finish_reason, cut.text) == ("stop", whole.text[: whole.text.index(stop)])
    assert cut.ids == whole.ids[: len(cut.ids)]
    assert last.stats.completion_tokens == len(cut.ids) < 40
    assert other.wait().finish_reason == "length"
    assert other.ids == whole.ids
    engine.stop()
    assert [delta.finish_reason for delta in cut.deltas].count("stop") == 1
    assert cut.deltas[-1] is last
    assert engine.recorder is not None
    engine.recorder.close()
    rows = [sample_from_row(row) for row in buffer.load()]
    (sample,) = [row for row in rows if row.request_id == "cut"]
    assert sample.output_ids.tolist() == cut.ids
    assert len(sample.target_top_ids) == len(sample.accepted) == len(cut.ids)


class Hold:
    """A listener that makes the output thread wait, and counts how far the engine is ahead of it."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def rounds_missed(self, engine: Engine, tokens: int) -> bool:
        """Whether a row gets this many tokens while nobody hears of any."""
        deadline = time.monotonic() + 20
        while max(engine.decoder.slots.lengths) < 3 + tokens and time.monotonic() < deadline:
            time.sleep(0.001)
        return max(engine.decoder.slots.lengths) >= 3 + tokens

    def on_round(self, stats: RoundStats) -> None:
        assert self.release.wait(30)

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None: ...

    def on_swap(self, event: SwapEvent) -> None: ...
