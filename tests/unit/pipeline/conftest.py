import shutil
from pathlib import Path

import pytest

from pipeline.config import HotdraftConfig
from pipeline.mlflow_store import open_client


@pytest.fixture(scope="session")
def empty_mlflow_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite store to copy: making one takes seconds."""
    run_dir = tmp_path_factory.mktemp("mlflow")
    open_client(HotdraftConfig(target="tiny", run_dir=run_dir))
    return run_dir / "mlflow.db"


@pytest.fixture
def store_config(empty_mlflow_db: Path, tmp_path: Path) -> HotdraftConfig:
    """A configuration whose MLflow store exists and is empty."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    shutil.copy(empty_mlflow_db, run_dir / "mlflow.db")
    return HotdraftConfig(target="tiny", run_dir=run_dir)
