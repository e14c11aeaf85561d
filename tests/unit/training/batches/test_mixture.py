"""What a draft brings along of its pre-distillation: rehearsed and guarded, and never taken for traffic."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotdraft.pipeline.config.learning import DistillConfig
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.rows import ReplayRows
from hotdraft.pipeline.replay.sample import NOT_DRAFTED
from hotdraft.pipeline.replay.schema import table_of
from hotdraft.pipeline.store.domains import DomainNames
from hotdraft.training.batches.mixture import (
    DOMAIN,
    FILE,
    held_out_in_mixture,
    read_mixture,
    save_mixture,
    served,
    split_mixture,
)
from hotdraft.training.batches.pools import mix_of, pools_of
from hotdraft.training.batches.record_check import contradiction
from hotdraft.training.batches.sound_rows import SoundRows


def rows_of(samples):
    return ReplayRows.of(table_of(samples))


@pytest.fixture
def answers(make_llama, serve):
    return serve(make_llama(1, scale=0.3), 40)


def test_a_draft_brings_some_of_its_answers_shortened_and_no_text(tmp_path, answers):
    texts = [
        replace(sample, request_id=f"t{i}", prompt_ids=sample.prompt_ids[:1]) for i, sample in enumerate(answers)
    ]
    kept = save_mixture(tmp_path, rows_of([*answers[:30], *texts]), rows_of(answers[30:]), 10, seed=0)
    brought = read_mixture(str(tmp_path))
    found = SoundRows(ReplayRows.of(brought)).samples(range(len(brought)))
    by_id = {sample.request_id: sample for sample in answers}
    assert kept == len(found) == 13
    assert sum(int(sample.request_id[1:]) >= 30 for sample in found) == 3
    for sample in found:
        original = by_id[sample.request_id]
        assert np.array_equal(sample.output_ids, original.output_ids)
        assert sample.domain == DOMAIN
        assert (sample.drafted_ids == NOT_DRAFTED).all()
        assert sample.target_top_ids.shape == (len(original.output_ids), 8)
        assert contradiction(sample) is None, "its mass is in the tail"


def test_who_asks_for_none_gives_no_prompt_away(tmp_path, answers):
    assert save_mixture(tmp_path, rows_of(answers), rows_of(answers), 0, seed=0) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, b"", b"PAR1 not", b"PAR1" + 200 * b"x" + b"PAR1"])
def test_a_draft_that_brings_nothing_that_can_be_read_is_a_draft_still(tmp_path, caplog, content):
    if content is not None:
        (tmp_path / FILE).write_bytes(content)
    assert read_mixture(str(tmp_path)) is None
    assert ("jobs go without" in caplog.text) == (content is not None)


def test_a_table_of_something_else_is_none(tmp_path, caplog):
    pq.write_table(pa.table({"request_id": ["a"], "prompt": ["b"]}), tmp_path / FILE)
    assert read_mixture(str(tmp_path)) is None
    assert "it has other columns than a shard" in caplog.text


def test_a_draft_that_is_not_there_brings_none(tmp_path):
    assert read_mixture(str(tmp_path / "nowhere")) is None


def test_what_an_earlier_release_wrote_has_todays_name(tmp_path, answers):
    pq.write_table(table_of([replace(one, domain="pre-distillation") for one in answers]), tmp_path / FILE)
    brought = ReplayRows.of(read_mixture(str(tmp_path)))
    assert set(brought["domain"]) == {DOMAIN}
    assert len(served(brought)) == 0


def test_none_of_what_is_rehearsed_judges(tmp_path, answers):
    save_mixture(tmp_path, rows_of(answers), rows_of([]), len(answers), seed=0)
    config = HotdraftConfig(target="tiny", draft=str(tmp_path), replay={"held_out_fraction": 0.3})
    rehearsed, judges = split_mixture(config)
    assert [sample.request_id for sample in held_out_in_mixture(config)] == [one.request_id for one in judges]
    assert {one.prompt_ids.tobytes() for one in rehearsed}.isdisjoint(one.prompt_ids.tobytes() for one in judges)
    assert len(rehearsed) + len(judges) == len(answers)
    assert 0 < len(judges) < len(rehearsed)
    without = config.model_copy(update={"draft": None})
    assert (split_mixture(without), held_out_in_mixture(without)) == (([], []), [])


@pytest.mark.parametrize("domain", ["pre-distillation", DOMAIN])
def test_no_client_can_have_its_traffic_taken_for_it(answers, domain):
    rows = rows_of([replace(sample, domain=DomainNames().name(domain)) for sample in answers])
    assert len(served(rows)) == len(answers)
    assert list(mix_of(rows["domain"], DistillConfig()).values()) == [1.0]


def test_it_is_older_than_all_traffic_and_no_part_of_the_mix(answers):
    brought = table_of([replace(sample, domain=DOMAIN) for sample in answers[:20]])
    rows = rows_of([replace(sample, domain="sql") for sample in answers[20:24]]).following(brought)
    settings = DistillConfig()
    assert mix_of(rows["domain"], settings) == {"sql": 1.0}
    today, older = pools_of(rows, settings)
    assert (today.rows.tolist(), older.rows.tolist()) == ([20, 21, 22, 23], list(range(20)))
    assert older.older
    assert served(rows)["request_id"] == [sample.request_id for sample in answers[20:24]]


def test_rows_that_follow_it_are_found_again_when_their_shards_were_merged(tmp_path, answers):
    buffer = ReplayBuffer(str(tmp_path))
    for sample in answers[10:14]:
        buffer.append([sample])
    rows = buffer.rows().following(table_of(answers[:10]))
    expected = [sample.request_id for sample in answers[:14]]
    for name in buffer.shards():
        (tmp_path / name).unlink()
    buffer.append(answers[10:14])
    assert rows.table(range(14))["request_id"].to_pylist() == expected
