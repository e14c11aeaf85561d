"""Workers: what passes between them and the benchmark, and how they fail."""

import os
import sys
from pathlib import Path

import pytest

from hotdraft.serving.benchmark.engines.client import Worker, WorkerError
from hotdraft.serving.benchmark.engines.engine import EngineSettings, Mode, PeerUnavailable, RunResult, Speculation
from hotdraft.serving.benchmark.engines.protocol import (
    mode_from_json,
    mode_to_json,
    result_from_json,
    result_to_json,
    settings_from_json,
    settings_to_json,
)


def settings(folder: Path) -> EngineSettings:
    return EngineSettings(folder, None, "float32", 1, folder, (1, 4), 64, folder / "config.yaml")


def test_what_is_said_arrives(tmp_path: Path) -> None:
    told = settings(tmp_path)
    assert settings_from_json(settings_to_json(told)) == told
    mode = Mode("speculative", "auto", recording=True)
    assert mode_from_json(mode_to_json(mode)) == mode
    for speculation in (None, Speculation(3, 6, 2)):
        result = RunResult(1.5, [[1, 2]], [[0.5, 1.0]], speculation)
        assert result_from_json(result_to_json(result)) == result


def python_that(folder: Path, does: str) -> str:
    """A stand-in for another Python."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    return str(script)


def start(folder: Path, python: str) -> Worker:
    environ = {"HOTDRAFT_BENCH_PYTHON_TRANSFORMERS": python, "PATH": os.environ["PATH"]}
    return Worker("transformers", settings(folder), folder / "log", environ)


def test_a_python_without_the_package_names_it(tmp_path: Path) -> None:
    only_the_standard_library = python_that(tmp_path, f'exec {sys.executable} -S "$@"')
    with (
        start(tmp_path, only_the_standard_library) as worker,
        pytest.raises(PeerUnavailable, match="'torch', see docs"),
    ):
        worker.wait_ready()


def test_a_worker_that_dies_leaves_its_last_words(tmp_path: Path) -> None:
    with (
        start(tmp_path, python_that(tmp_path, "echo no more memory >&2; exit 3")) as worker,
        pytest.raises(WorkerError, match="transformers's worker ended with code 3: no more memory"),
    ):
        worker.wait_ready()
