"""What is told of a recorded request without reading it is what whoever reads it finds."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.index import held_out, index_of, may_be_of, prompt_hash
from hotdraft.pipeline.replay.sample import GUESSED, NOT_DRAFTED, may_be_same, missed
from hotdraft.pipeline.replay.schema import is_held_out, table_of
from hotdraft.pipeline.replay.stats import DraftedCounts
from tests.unit.pipeline.replay.test_replay import make_sample


def test_a_prompt_is_of_the_gates_split_by_its_hash_as_by_its_tokens() -> None:
    prompts = [np.array([1, number], np.int32) for number in range(500)]
    hashes = np.array([prompt_hash(ids) for ids in prompts], np.uint64)
    assert held_out(hashes, 0.3).tolist() == [is_held_out(ids, 0.3) for ids in prompts]
    assert len(set(hashes.tolist())) == len(set((hashes & np.uint64(2**32 - 1)).tolist())) == 500, (
        "both halves tell"
    )


def test_what_is_not_known_to_be_another_models_may_be_ours() -> None:
    ids = ["", "ours", "another"]
    assert [may_be_same(found, "ours") for found in ids] == [True, True, False]
    for target in ("", "ours"):
        told = may_be_of(pa.table({"target_id": ids}), target).tolist()
        assert told == [may_be_same(found, target) for found in ids]


def test_token_0_counts_as_any_other_and_what_was_guessed_from_text_as_none() -> None:
    drafted = np.array([NOT_DRAFTED, 0, 0, 7, GUESSED], np.int32)
    accepted = np.array([False, True, False, False, False])
    sample = replace(make_sample("a", version=3), drafted_ids=drafted, accepted=accepted)
    assert sample.rejected.tolist() == [False, False, True, True, False]
    [row] = index_of(table_of([sample])).to_pylist()
    assert (row["drafted"], row["accepted"], row["draft_version"]) == (3, 1, 3)
    assert row["missed"] == missed(drafted, accepted).sum() == 3
    assert (row["prompt_tokens"], row["output_tokens"]) == (7, 5)


def test_a_record_that_contradicts_itself_is_told_of_all_the_same() -> None:
    table = table_of([make_sample("a")])
    broken = table.set_column(table.schema.names.index("accepted"), table.schema.field("accepted"), [[[True] * 2]])
    [row] = index_of(broken).to_pylist()
    assert (row["request_id"], row["missed"]) == ("a", 0)


def test_where_nothing_was_drafted_there_is_no_acceptance_rate(tmp_path) -> None:
    buffer, plain = ReplayBuffer(str(tmp_path)), make_sample("a", domain="plain")
    nothing = replace(
        plain, drafted_ids=np.full_like(plain.drafted_ids, NOT_DRAFTED), accepted=np.zeros_like(plain.accepted)
    )
    buffer.append([nothing, make_sample("b")])
    assert buffer.stats().by_domain["plain"] == DraftedCounts(1, 0, 0, None)
