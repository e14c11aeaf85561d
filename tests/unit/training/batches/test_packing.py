"""What a batch says of its requests, and how many of them it takes."""

from dataclasses import replace

import numpy as np
import pytest

from hotdraft.training.batches.packing import grouped, pack


@pytest.fixture
def sample(make_llama, serve):
    return replace(serve(make_llama(0), 1)[0], temperature=0.7, top_p=1.0, top_k=0, min_p=0.0)


@pytest.mark.parametrize("filters", [{"top_p": 0.9}, {"top_k": 1}, {"min_p": 0.1}], ids=str)
def test_one_request_with_a_filter_makes_a_batch_look_at_filters_unless_it_is_greedy(sample, filters):
    assert not pack([sample]).any_filtered
    assert pack([sample, replace(sample, **filters)]).any_filtered
    assert not pack([sample, replace(sample, **filters, temperature=0.0)]).any_filtered


def test_only_a_position_that_no_round_drafted_weighs_as_such(sample):
    count = len(sample.output_ids)
    drafted = np.zeros(count, np.int32)  # 0 is a token
    drafted[3:] = -1
    batch = pack([replace(sample, drafted_ids=drafted, accepted=np.ones(count, bool))], undrafted_weight=0.5)
    assert batch.weight.tolist() == [1.0] * 3 + [0.5] * (count - 3)


def test_a_group_fills_a_batch_and_a_longer_request_is_one_of_its_own(sample):
    def of(length):
        return replace(sample, prompt_ids=np.arange(length), output_ids=np.arange(1))

    lengths = [[len(one.prompt_ids) for one in group] for group in grouped(map(of, [12, 4, 6, 1, 12, 9]), 10)]
    assert lengths == [[12], [4, 6], [1], [12], [9]]
