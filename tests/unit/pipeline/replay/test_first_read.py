import numpy as np
import pytest

from hotdraft.pipeline.replay.draft_window import first_read, in_windows, lengths_read
from tests.unit.pipeline.replay.test_replay import make_sample


@pytest.mark.parametrize(("length", "first"), [(0, 0), (64, 0), (128, 0), (129, 65), (1000, 936)])
def test_the_end_is_read_of_what_is_more_than_twice_as_long(length: int, first: int) -> None:
    assert first_read(length, 64) == first
    assert lengths_read(np.array([length]), 64).tolist() == [length - first]
    assert first_read(length, None) == 0
    assert lengths_read(np.array([length]), None).tolist() == [length]


def test_the_parts_of_an_answer_are_all_of_it_each_behind_what_is_read_before_it() -> None:
    window, most = 4, set()
    for length in range(1, 60):
        sample = make_sample("a", length=length)
        parts = in_windows(sample, window)
        assert np.concatenate([part.output_ids for part in parts]).tolist() == sample.output_ids.tolist()
        assert all(len(part.output_ids) == len(part.accepted) > 0 for part in parts)
        context, end = np.concatenate([sample.prompt_ids, sample.output_ids]), len(sample.prompt_ids)
        for number, part in enumerate(parts):
            read = window if number else len(sample.prompt_ids)
            assert part.prompt_ids.tolist() == context[end - read : end].tolist()
            end += len(part.output_ids)
            most.add(len(part.read_tokens))
        assert len(in_windows(sample, None)) == 1
    assert max(most) == 3 * window
