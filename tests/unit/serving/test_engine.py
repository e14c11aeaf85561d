"""Requests of different lengths join, leave, stop and are cancelled without disturbing each other."""

import threading
import time
from collections.abc import Iterator

import pytest

from pipeline.config import EngineConfig, HotdraftConfig, RecorderConfig
from pipeline.models import ModelError, load_causal_lm
from pipeline.replay import ReplayBuffer, sample_from_row
from serving.app import build_engine
from serving.engine import Engine, QueueFullError
from serving.request import GenerationRequest, OutputDelta, SamplingParams


class Client:
    """Collects what a request hears."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[int] = []
        self.deltas: list[OutputDelta] = []
        self.first = threading.Event()
        self.done = threading.Event()

    def __call__(self, delta: OutputDelta) -> None:
        self.deltas.append(delta)
        self.text += delta.text
        self.ids += delta.token_ids
        self.first.set()
        if delta.finish_reason:
            self.done.set()

    def wait(self) -> OutputDelta:
        assert self.done.wait(60)
        return self.deltas[-1]


@pytest.fixture
def config(tiny_target: str, tiny_draft: str, tmp_path: object) -> HotdraftConfig:
    return HotdraftConfig(
        target=tiny_target,
        draft=tiny_draft,
        dtype="float32",
        device="cpu",
        run_dir=tmp_path,
        engine=EngineConfig(k=2, num_slots=3, max_model_len=128, max_queue=20, prefill_chunk=16, threads=1),
        recorder=RecorderConfig(top_k=8, flush_seconds=0.2),
    )


@pytest.fixture
def buffer(config: HotdraftConfig) -> ReplayBuffer:
    return ReplayBuffer(config.replay_url)


@pytest.fixture
def engine(config: HotdraftConfig, buffer: ReplayBuffer) -> Iterator[Engine]:
    engine = build_engine(config, buffer)
    engine.start()
    yield engine
    engine.stop()
    assert engine.recorder is not None
    engine.recorder.close()


def request(name: str, prompt: tuple[int, ...] = (1, 2, 3), **params: object) -> GenerationRequest:
    values = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True, **params}
    return GenerationRequest(name, prompt, SamplingParams(**values))


def ask(engine: Engine, wanted: GenerationRequest) -> Client:
    client = Client()
    engine.submit(wanted, client)
    return client


def greedy(target: str, prompt: tuple[int, ...], length: int) -> list[int]:
    import torch

    model = load_causal_lm(target)
    ids = model.generate(
        torch.tensor([prompt]), max_new_tokens=length, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return ids[0, len(prompt) :].tolist()


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


def test_an_engine_that_breaks_tells_every_request(
    config: HotdraftConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build_engine(config, None)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine.decoder, "round", broken)
    engine.start()
    assert ask(engine, request("r")).wait().finish_reason == "error"
    assert not engine.is_alive or engine._thread.join(5) is None
    with pytest.raises(QueueFullError):
        ask(engine, request("later"))


def test_errands_run_between_rounds_and_hand_back_errors(engine: Engine) -> None:
    client = ask(engine, request("r", max_tokens=100))
    assert engine.between_rounds(lambda: threading.current_thread().name).result(30) == "engine"
    with pytest.raises(ValueError, match="mine"):
        engine.between_rounds(_fail).result(30)
    assert client.wait().finish_reason == "length"


def _fail() -> None:
    raise ValueError("mine")


def test_what_is_recorded(engine: Engine, buffer: ReplayBuffer, tiny_target: str) -> None:
    client = ask(engine, request("kept", max_tokens=9))
    secret = Client()
    engine.submit(
        GenerationRequest("secret", (4, 5), SamplingParams(max_tokens=5, temperature=0), record=False), secret
    )
    client.wait()
    secret.wait()
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
    assert sample.accepted.sum() <= client.deltas[-1].stats.accepted_tokens


def test_a_draft_of_another_vocabulary_is_refused(config: HotdraftConfig, tmp_path: object) -> None:
    from pathlib import Path

    from tests.conftest import tiny_llama, tiny_tokenizer

    folder = Path(str(tmp_path)) / "other"
    tiny_llama(1, 0).save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["extra"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match="one vocabulary"):
        build_engine(config.model_copy(update={"draft": str(folder)}), None)
