import numpy as np
import pytest

from hotdraft.pipeline.replay.sample import NOT_DRAFTED
from hotdraft.training.experiment.play import play


def played(serve, make_llama, chances, k=3):
    (sample,) = serve(make_llama(0), 1)
    chances = np.resize(np.asarray(chances, float), len(sample.output_ids))
    return sample, play(sample, chances, k=k, draft_version=7, generator=np.random.default_rng(0))


def test_a_draft_that_is_always_right_gives_rounds_of_k_and_a_bonus(serve, make_llama):
    sample, result = played(serve, make_llama, [1])
    assert len(sample.output_ids) == 24
    assert (result.rounds, result.drafted, result.accepted) == (6, 18, 18)
    assert (result.sample.drafted_ids == NOT_DRAFTED).nonzero()[0].tolist() == [3, 7, 11, 15, 19, 23]
    assert set(result.sample.draft_versions) == {7}


def test_a_draft_that_is_always_wrong_gives_a_round_a_token(serve, make_llama):
    _, result = played(serve, make_llama, [0])
    assert (result.rounds, result.accepted) == (24, 0)
    assert result.drafted == 21 * 3 + 2 + 1  # no more than what is left but the round's own token
    assert result.sample.rejected.sum() == 23


def test_a_round_ends_at_its_first_rejection(serve, make_llama):
    sample, result = played(serve, make_llama, [1, 0, 1, 1])
    first = result.sample
    assert first.accepted[:6].tolist() == [True, False, True, True, True, False]
    assert first.drafted_ids[0] == sample.output_ids[0]
    assert result.accepted == first.accepted.sum()


def test_acceptance_is_that_of_the_chances(serve, make_llama):
    accepted = drafted = 0
    (sample,) = serve(make_llama(0), 1)
    generator = np.random.default_rng(0)
    chances = np.full(len(sample.output_ids), 0.6)
    for _ in range(400):
        result = play(sample, chances, k=3, draft_version=0, generator=generator)
        accepted += result.accepted
        drafted += result.drafted
    assert accepted / drafted == pytest.approx((0.6 + 0.36 + 0.216) / 3, abs=0.02)
