"""k as an operator's file says, over a real engine."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.loop.controls import ControlFile, Controls
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.updates import k_override as module
from hotdraft.serving.updates.k_override import KOverride
from tests.unit.serving.clients import ask, request


@pytest.fixture
def controls(tmp_path: Path) -> ControlFile:
    return ControlFile(tmp_path)


@pytest.fixture
def override(engine: Engine, controls: ControlFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[KOverride]:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    override = KOverride(engine, controls)
    yield override
    override.stop()


def becomes(engine: Engine, k: object) -> bool:
    deadline = time.monotonic() + 20
    while engine.k != k and time.monotonic() < deadline:
        time.sleep(0.005)
    return engine.k == k


def test_the_file_is_followed_from_the_start_and_back(engine, override, controls, caplog):
    caplog.set_level("INFO")
    controls.override_k(1, 2, 3)
    override.start()
    assert engine.k == 1, "before the first request"
    assert "k is 1, an operator's override" in caplog.text
    controls.override_k(0, 2, 3)
    assert becomes(engine, 0)
    controls.override_k(None, 2, 3)
    assert becomes(engine, 2)
    assert "k is 2, as configured" in caplog.text


def test_without_an_override_nothing_is_said(engine, override, caplog):
    caplog.set_level("INFO")
    override.start()
    assert engine.k == override.configured == 2
    assert not caplog.records


def test_an_override_that_cannot_be_leaves_what_is_configured(engine, override, controls, caplog):
    controls.override_k(1, 8, 3)
    override.follow()
    controls.override_k(7, 8, 3)
    override.follow()
    override.follow()
    assert engine.k == 2
    assert caplog.text.count("between 0 and 2, not 7") == 1


def test_what_goes_wrong_otherwise_is_told_of_and_the_file_is_followed_on(
    engine, override, controls, monkeypatch, caplog
):
    failing = threading.Event()

    def read() -> Controls:
        if not failing.is_set():
            failing.set()
            raise MemoryError("for a moment")
        return ControlFile.read(controls)

    override.start()
    monkeypatch.setattr(controls, "read", read)
    assert failing.wait(10)
    ControlFile.override_k(controls, 1, 2, 3)
    assert becomes(engine, 1)
    assert "MemoryError('for a moment')" in caplog.text


def test_an_automatic_k_waits_until_no_request_runs(engine, override, controls):
    assert engine.k_choice.adaptive is None
    client = ask(engine, request("long", max_tokens=100))
    client.first.wait(20)
    seen = engine.between_rounds(lambda: (controls.override_k("auto", 2, 3), engine.num_running)).result()
    assert seen[1] == 1
    busy = threading.Event()
    engine.between_rounds(lambda: busy.wait(0.2))
    override.follow()
    if not client.done.is_set():
        assert engine.k == 2
    override.start()
    assert client.wait().finish_reason == "length"
    assert becomes(engine, "auto")
    assert engine.k_choice.adaptive is not None
    assert ask(engine, request("next")).wait().finish_reason == "length"


def test_costs_that_cannot_be_measured_are_told_of_and_not_measured_each_second(
    engine, override, controls, caplog, monkeypatch
):
    now, measure = [1000.0], Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]), raising=False)
    controls.override_k("auto", 2, 3)
    with monkeypatch.context() as busy:
        busy.setattr(Engine, "num_running", 1)
        override.follow()
    monkeypatch.setattr(engine.k_choice, "measure_costs", measure)
    for _ in range(3):
        override.follow()
    assert measure.call_count == 1
    assert caplog.text.count("k = auto does not hold, k is 2: CUDA out of memory") == 1
    now[0] += module.RETRY_SECONDS
    override.follow()
    assert measure.call_count == 2
    controls.override_k(1, 2, 3)
    override.follow()
    assert engine.k == 1, "another is followed at once"
    controls.override_k("auto", 2, 3)
    monkeypatch.undo()
    override.follow()
    assert engine.k == "auto"


def test_without_a_draft_there_is_no_k(config: HotdraftConfig, controls, caplog):
    alone = build_engine(config.model_copy(update={"draft": None}), None)
    override = KOverride(alone, controls)
    for k in ("auto", 2):
        controls.override_k(k, 8, 3)
        override.follow()
        assert alone.k == override.configured == override.largest == 0
    assert caplog.text.count("does not hold") == 2
