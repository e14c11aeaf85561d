from pathlib import Path

import pytest

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.schema import table_of
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import held_out_in_mixture, save_mixture
from hotdraft.training.judging import resident as resident_module
from hotdraft.training.judging.evidence import VersionScores
from hotdraft.training.judging.resident import Resident
from hotdraft.training.judging.served_draft import ServedDraft

pytestmark = pytest.mark.slow


def test_a_trainer_that_was_warmed_up_loads_and_asks_nothing_at_its_first_job(
    tmp_path, make_llama, serve, monkeypatch, empty_mlflow_db
):
    (tmp_path / "mlflow.db").write_bytes(Path(empty_mlflow_db).read_bytes())
    folder = tmp_path / "draft"
    make_llama(0, layers=1).save_pretrained(folder)
    rows = ReplayRows.of(table_of(serve(make_llama(1, layers=1), 30)))
    save_mixture(folder, rows.select(range(20)), rows.select(range(20, 30)), 20, seed=0)
    config = HotdraftConfig(target="unused", draft=str(folder), dtype="float32", device="cpu", run_dir=tmp_path)
    registry, resident = AdapterRegistry(config), Resident()
    resident.warm(config.draft, config, registry)
    monkeypatch.setattr(resident_module, "load_draft", None)
    monkeypatch.setattr(ServedDraft, "chances", None)
    judges = held_out_in_mixture(config)
    assert judges
    draft = resident.draft(config.draft, config)
    scores = VersionScores(draft, registry, config.distill, judges, resident.scores).of_champion(0)
    assert ((scores >= 0) & (scores <= 1)).all()
