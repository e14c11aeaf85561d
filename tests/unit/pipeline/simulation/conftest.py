import pytest


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"target: fake\nrun_dir: {tmp_path / 'run'}\n")
    return path
