import shutil
from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig


@pytest.fixture
def store_config(empty_mlflow_db: Path, tmp_path: Path) -> HotdraftConfig:
    """A configuration whose MLflow store exists and is empty."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    shutil.copy(empty_mlflow_db, run_dir / "mlflow.db")
    return HotdraftConfig(target="tiny", run_dir=run_dir)
