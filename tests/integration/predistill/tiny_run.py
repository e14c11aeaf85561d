"""`python -m tests.integration.predistill.tiny_run FOLDER SETTINGS`: trains a tiny draft as pre-distillation does.

FOLDER holds an MLflow store; the run's id goes to `run_id` and is taken from there by the next start, the
trained weights to `trained.pt`. SETTINGS are those of `predistill` in JSON. Every step is logged if there is
one process only.
"""

import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlflow import MlflowClient

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import NOT_DRAFTED, ReplaySample
from hotdraft.pipeline.store.connection import open_client
from hotdraft.training.batches.replay_data import ReplayDataModule
from hotdraft.training.drafts.draft_init import freeze_shared
from hotdraft.training.fit import run
from hotdraft.training.fit.run import RunPlace
from hotdraft.training.predistill.train_draft import train_draft
from tests.models import tiny_llama, tiny_tokenizer

VOCABULARY = 257
TOP_K = 8


def random_sample(index: int) -> ReplaySample:
    """A request of random length, so that batches weigh differently."""
    generator = np.random.default_rng(index)
    length = int(generator.integers(4, 24))
    top_ids = np.stack([generator.permutation(VOCABULARY)[:TOP_K] for _ in range(length)])
    logprobs = np.log(generator.dirichlet(np.ones(TOP_K + 1), length))
    return ReplaySample(
        request_id=f"r{index}",
        created_at=float(index),
        domain="d",
        temperature=1.0,
        prompt_ids=generator.integers(0, 256, 6).astype(np.int32),
        output_ids=top_ids[:, 0].astype(np.int32),
        target_top_ids=top_ids.astype(np.int32),
        target_top_logprobs=logprobs[:, :TOP_K].astype(np.float16),
        target_tail_logprob=logprobs[:, TOP_K].astype(np.float32),
        drafted_ids=np.full(length, NOT_DRAFTED, np.int32),
        accepted=np.zeros(length, bool),
        draft_versions=np.zeros(length, np.int32),
    )


def place_in(folder: Path) -> RunPlace:
    client = open_client(HotdraftConfig(target="unused", run_dir=folder))
    known = folder / "run_id"
    if not known.is_file():
        experiment = client.create_experiment("e", artifact_location=str(folder / "artifacts"))
        known.write_text(client.create_run(experiment).info.run_id)
    return RunPlace(f"sqlite:///{folder}/mlflow.db", known.read_text(), folder / "checkpoints", progress=False)


def train_in(folder: Path, values: dict[str, Any]) -> None:
    settings = PredistillConfig(**values)
    torch.set_num_threads(settings.devices)
    with tempfile.TemporaryDirectory() as replay:
        buffer = ReplayBuffer(replay)
        buffer.append([random_sample(index) for index in range(60)])
        rows = buffer.load()
    draft = tiny_llama(layers=2, seed=2)
    freeze_shared(draft)
    data = ReplayDataModule.for_predistill(rows, settings, 0.2)
    trained, metrics = train_draft(draft, data, settings, tiny_tokenizer(), place_in(folder))
    torch.save({"weights": trained.state_dict(), "metrics": metrics}, folder / "trained.pt")


def command(folder: Path, settings: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "tests.integration.predistill.tiny_run", str(folder), json.dumps(settings)]


def curve(folder: Path, name: str) -> dict[int, list[float]]:
    """All values that were logged as `name`, by step: a step that a broken run repeats has several."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    values = defaultdict(list)
    for metric in client.get_metric_history((folder / "run_id").read_text(), name):
        values[metric.step].append(metric.value)
    return dict(values)


if __name__ == "__main__":
    run.LOG_EVERY_STEPS = 1
    train_in(Path(sys.argv[1]), json.loads(sys.argv[2]))
