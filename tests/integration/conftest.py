"""A pair that learns within seconds, and configurations of it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from tests.integration.processes import MODEL, Server
from tests.models import disturbed, save, tiny_llama


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a tiny target and of a draft of it that has much to learn."""
    target = tiny_llama(layers=2, seed=1)
    folder = tmp_path_factory.mktemp("pair")
    return save(target, folder / "target"), save(disturbed(target), folder / "draft")


@pytest.fixture(scope="session")
def write_config(pair: tuple[str, str], empty_mlflow_db: Path) -> Callable[..., Path]:
    """`write_config(folder, section={...})` writes a configuration of a run in `folder`, whose store is empty."""

    def write(folder: Path, **changes: Any) -> Path:
        (folder / "run").mkdir(exist_ok=True)
        shutil.copy(empty_mlflow_db, folder / "run")
        content: dict[str, Any] = {
            "target": pair[0],
            "draft": pair[1],
            "dtype": "float32",
            "device": "cpu",
            "run_dir": str(folder / "run"),
            "server": {"served_model_name": MODEL},
            "engine": {"k": 3, "num_slots": 8, "max_model_len": 256, "threads": 1},
            "recorder": {"top_k": 32, "flush_seconds": 0.3},
            "replay": {"held_out_fraction": 0.3},
            "distill": {
                "lora": {"rank": 4, "alpha": 8},
                "learning_rate": 0.02,
                "max_steps": 60,
                "older_fraction": 0.3,
                "older_directions": 0,
                "blends": [1.0, 0.5],
                "batch_tokens": 512,
                "checkpoint_steps": 5,
                "threads": 1,
                "trigger": {"min_new_requests": 60, "min_new_rejected": 100, "poll_seconds": 0.3},
            },
            "tracking": {"interval_seconds": 1.0},
        }
        for key, value in changes.items():
            content[key] = {**content[key], **value} if isinstance(content.get(key), dict) else value
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


@pytest.fixture(scope="module")
def config(config_path: Path) -> HotdraftConfig:
    """Of the module's `config_path`."""
    return load_config(config_path)


@pytest.fixture(scope="module")
def server(config_path: Path) -> Iterator[Server]:
    """Of the module's `config_path`, with a trainer beside it."""
    server = Server(config_path, config_path.with_name("server.log"), "--self-improve")
    yield server
    server.kill()
