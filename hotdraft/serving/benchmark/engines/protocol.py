"""What the benchmark and its workers say to each other: one JSON object a line.

The worker's first line is `{"ready": {...}}` or `{"unavailable": reason}`. Then it answers each
request with one line: `{"run": {...}}` with a run's result, `{"measure": {...}}` with figures, and
anything that went wrong with `{"error": text}`. Standard library only, as a worker may have no torch.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotdraft.serving.benchmark.engines.engine import EngineSettings, Mode, RunResult, Speculation


def settings_to_json(settings: EngineSettings) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(settings).items()}


def settings_from_json(content: dict[str, Any]) -> EngineSettings:
    paths = ("target_folder", "draft_folder", "cache_folder", "config_file")
    read: dict[str, Any] = {
        key: Path(value) if key in paths and value is not None else value for key, value in content.items()
    }
    return EngineSettings(**{**read, "concurrency": tuple(content["concurrency"])})


def mode_to_json(mode: Mode) -> dict[str, Any]:
    return {"mode": mode.kind, "k": mode.k, "recording": mode.recording}


def mode_from_json(content: dict[str, Any]) -> Mode:
    return Mode(content["mode"], content["k"], content["recording"])


def result_to_json(result: RunResult) -> dict[str, Any]:
    return asdict(result)


def result_from_json(content: dict[str, Any]) -> RunResult:
    told = content["speculation"]
    return RunResult(**{**content, "speculation": Speculation(**told) if told is not None else None})
