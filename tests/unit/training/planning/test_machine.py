from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.training.planning import machine
from hotdraft.training.planning.machine import available_for


def test_what_a_run_has_written_is_its_own_to_go_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda path: 1_000_000)
    config = HotdraftConfig(target="t", device="cpu", run_dir=tmp_path)
    assert available_for(config).disk == 1_000_000
    for name in ("replay/a.parquet", "checkpoints/last.ckpt", "mlruns/of/others"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"x" * 500_000)
    taken = available_for(config).disk
    assert taken is not None
    assert 2_000_000 <= taken < 2_200_000
    replay = config.replay.model_copy(update={"url": str(tmp_path / "replay")})
    elsewhere = available_for(config.model_copy(update={"replay": replay})).disk
    assert elsewhere is not None
    assert elsewhere <= taken - 500_000, "another disk may have that"
