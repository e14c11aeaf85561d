import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.draft_window import in_windows
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.schema import table_of
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.training.batches.mixture import save_mixture, split_mixture
from hotdraft.training.batches.packing import pack
from hotdraft.training.judging import resident as resident_module
from hotdraft.training.judging.evidence import VersionScores
from hotdraft.training.judging.resident import Resident
from hotdraft.training.judging.served_draft import ServedDraft
from hotdraft.training.judging.teachers import teachers_of
from hotdraft.training.scoring import rehearsal

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path, make_llama, serve, empty_mlflow_db):
    """Whose draft brings a mixture along."""
    (tmp_path / "mlflow.db").write_bytes(Path(empty_mlflow_db).read_bytes())
    folder = tmp_path / "draft"
    make_llama(0, layers=1).save_pretrained(folder)
    rows = ReplayRows.of(table_of(serve(make_llama(1, layers=1), 30)))
    save_mixture(folder, rows.select(range(20)), rows.select(range(20, 30)), 20, seed=0)
    return HotdraftConfig(target="unused", draft=str(folder), dtype="float32", device="cpu", run_dir=tmp_path)


def test_a_trainer_that_was_warmed_up_loads_and_asks_nothing_at_its_first_job(config, monkeypatch):
    registry, resident = AdapterRegistry(config), Resident()
    bits = sum(1 for _ in resident.warm(config.draft, config, registry))
    learned, judges = split_mixture(config)
    assert judges
    assert bits == 1 + math.ceil(len(judges) / 8) + math.ceil(len(learned) / 8)
    monkeypatch.setattr(resident_module, "load_draft", None)
    monkeypatch.setattr(ServedDraft, "chances", None)
    monkeypatch.setattr(rehearsal, "score", None)
    draft = resident.draft(config.draft, config)
    scores = VersionScores(draft, registry, config.distill, judges, resident.scores).of_champion(0)
    assert ((scores >= 0) & (scores <= 1)).all()
    taught = resident.rehearsal.taught(teachers_of(draft, 0, registry), learned, config.recorder.top_k)
    assert [sample.request_id for sample in taught] == [sample.request_id for sample in learned]


def test_of_a_long_prompt_a_trainer_is_warmed_up_by_the_end_that_batches_have(config, make_llama, serve):
    long = np.arange(150, dtype=np.int32)
    samples = [
        replace(one, prompt_ids=np.concatenate([(long + index) % 64, one.prompt_ids]))
        for index, one in enumerate(serve(make_llama(1, layers=1), 30))
    ]
    rows = ReplayRows.of(table_of(samples))
    save_mixture(Path(config.draft), rows.select(range(20)), rows.select(range(20, 30)), 20, seed=0)
    config = config.model_copy(update={"engine": config.engine.model_copy(update={"draft_window": 64})})
    registry, resident = AdapterRegistry(config), Resident()
    list(resident.warm(config.draft, config, registry))
    draft = resident.draft(config.draft, config)
    [asked, *_] = [in_windows(sample, 64)[0] for sample in split_mixture(config)[0]]
    [taught] = resident.rehearsal.taught(teachers_of(draft, 0, registry), [asked], config.recorder.top_k)
    assert taught.prompt_ids.tolist() == asked.prompt_ids.tolist()


def test_what_was_begun_with_another_draft_is_not_gone_on_with(config, make_llama):
    resident = Resident()
    bits = resident.warm(config.draft, config, AdapterRegistry(config))
    next(bits)
    make_llama(5, layers=1).save_pretrained(config.draft)
    resident.draft(config.draft, config)
    assert list(bits) == []
    assert not resident.scores


def test_what_layers_are_given_on_older_requests_is_looked_at_anew_for_other_requests_alone(make_llama, serve):
    samples, resident, asked = serve(make_llama(1, layers=1), 3), Resident(), []

    def find(name):
        asked.append(name)
        return {name: torch.zeros(2, 1)}

    for name, some in (("a", samples[:2]), ("b", samples[:2]), ("c", samples[1:]), ("d", samples[1:])):
        found = resident.directions(pack(some), lambda name=name: find(name))
        assert list(found) == [asked[-1]]
    assert asked == ["a", "c"]
