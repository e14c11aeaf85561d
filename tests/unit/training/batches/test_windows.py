"""What is learned from where a draft reads the end of a long context alone."""

from dataclasses import replace

import numpy as np
import pytest

from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.draft_window import in_windows
from hotdraft.pipeline.replay.sample import BY_POSITION, ReplaySample
from hotdraft.training.batches.packing import DataError
from tests.unit.training.batches.halves import split, stream_of


@pytest.fixture
def target(make_llama):
    return make_llama(0, scale=0.3)


def answered_at_length(sample: ReplaySample) -> ReplaySample:
    """`sample` with its answer twenty times over."""
    return replace(sample, **{name: np.concatenate([getattr(sample, name)] * 20) for name in BY_POSITION})


def test_of_a_long_prompt_the_end_is_learned_from_that_the_draft_reads_when_it_serves(target, serve, tmp_path):
    samples = serve(target, 12)
    long = np.arange(200, dtype=np.int32) % 50
    samples = [
        replace(one, prompt_ids=np.concatenate([long + index, one.prompt_ids])) for index, one in enumerate(samples)
    ]
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append(samples)
    with pytest.raises(DataError, match="none of 12"):
        stream_of(buffer.load(), max_length=100)
    data = split(buffer.load(), 1e-9, max_length=100, window=64)
    assert len(data.usable(buffer.rows())) == 12
    batch = data.batches().batch(0)
    ends = {one.prompt_ids[-64:-1].astype(np.int64).tobytes() for one in samples}
    assert set(batch.prompts) <= ends
    assert batch.position_ids.max() < 100


def test_of_a_long_answer_every_part_is_learned_from_behind_what_is_read_before_it(target, serve, tmp_path):
    sample = answered_at_length(*serve(target, 1))
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([sample])
    stream = split(buffer.load(), 1e-9, max_length=1000, window=64).batches()
    batches = [stream.batch(index) for index in range(40)]
    read = {batch.input_ids.shape[1] for batch in batches}
    assert read == {len(part.prompt_ids) + len(part.output_ids) - 1 for part in in_windows(sample, 64)}
    assert max(read) == 3 * 64
    assert len({batch.prompts for batch in batches}) == 4


def test_parts_of_an_answer_behind_more_than_is_learned_from_are_passed_over(target, serve, tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([answered_at_length(sample) for sample in serve(target, 4)])
    stream = split(buffer.load(), 1e-9, max_length=40, window=64).batches()
    for batch in map(stream.batch, range(40)):
        assert max(map(len, batch.prompts)) < 8 * batch.input_ids.itemsize, "the answer's beginning"
        assert batch.lengths == len(batch.lengths) * (40,)
