"""What an experiment has found so far, in its folder: nothing is played twice under the same settings."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import fingerprint
from hotdraft.pipeline.replay.sample import ReplaySample
from hotdraft.pipeline.system.json_file import write_json
from hotdraft.training.experiment.ceiling import Reached
from hotdraft.training.experiment.study import StreamResult


def kept_or_played(
    out: Path,
    name: str,
    config: HotdraftConfig,
    samples: Sequence[ReplaySample],
    play: Callable[[HotdraftConfig], StreamResult | Reached],
) -> dict[str, Any]:
    """As JSON, what `play` finds under `config` in a new run directory, or has found before on `samples`."""
    folder = out / "runs" / name
    signature = _signature(config, [sample.request_id for sample in samples])
    path = out / "results" / f"{name}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if result.get("signature") != signature:
        shutil.rmtree(folder, ignore_errors=True)  # what a run left that was stopped
        result = {"signature": signature, **asdict(play(config.apart(folder)))}
        write_json(path, result)
    return result


def _signature(config: HotdraftConfig, request_ids: list[str]) -> str:
    """Of all that a result depends on: one found under another is not taken."""
    passed_over = {"policies", "ceilings", "ceiling_requests", "baseline", "seeds"}
    told = config.model_dump_json(exclude={"run_dir": True, "experiment": passed_over})
    weights = "" if config.draft is None else fingerprint(config.draft)  # another draft may have its name by now
    return hashlib.sha256(" ".join([told, weights, *request_ids]).encode()).hexdigest()
