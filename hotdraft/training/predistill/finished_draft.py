"""What a pre-distillation knows of the draft it has written, until it has told all there is to tell of it.

Stopped in between, the same command finds its own draft in the folder and goes on from there.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import choose_device, choose_dtype, fingerprint
from hotdraft.pipeline.system.json_file import write_json
from hotdraft.training.predistill.draft_card import Figures


@dataclass(frozen=True)
class PredistillResult:
    """What a pre-distillation reached on prompts never trained on."""

    figures: Figures
    by_position: Figures
    predicted_speed_up: float
    """Over plain decoding, where memory bounds it, at the greedy agreement that was reached."""
    run_id: str
    """The MLflow run."""


class FinishedDraft:
    """`<run_dir>/finished.json`, which tells of the draft that `config` made in `out`."""

    def __init__(self, config: HotdraftConfig, out: Path, *, slim: bool) -> None:
        self._config = config
        self._out = out
        self._slim = slim
        self._path = config.run_dir / "finished.json"

    def read(self) -> PredistillResult | None:
        """None unless the same command has written this folder, and has not ended since."""
        if not self._path.is_file() or not self._out.is_dir() or not any(self._out.iterdir()):
            return None
        record = json.loads(self._path.read_text())
        return PredistillResult(**record["outcome"]) if record["command"] == self._command() else None

    def write(self, outcome: PredistillResult) -> None:
        write_json(self._path, {"command": self._command(), "outcome": asdict(outcome)})

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)

    def _command(self) -> dict[str, Any]:
        return {**recipe(self._config), "out": str(self._out.absolute()), "slim": self._slim}


def recipe(config: HotdraftConfig) -> dict[str, Any]:
    """All that a pre-distilled draft depends on but its data, ready for JSON."""
    dtype = choose_dtype(config.dtype, choose_device(config.device))
    draft = config.predistill.draft
    return {
        "target": fingerprint(config.target),
        "target_weights": config.engine.target_weights,
        "dtype": str(dtype),
        "held_out_fraction": config.replay.held_out_fraction,
        **config.predistill.model_dump(mode="json"),
        "draft": None if draft is None else fingerprint(draft),
    }
