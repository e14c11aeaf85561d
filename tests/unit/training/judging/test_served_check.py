from dataclasses import replace

import numpy as np
import pytest

from hotdraft.training.experiment.play import play
from hotdraft.training.judging.served_check import UnlikeServedError, check_served, checkable


@pytest.fixture
def served(serve, make_llama):
    """Greedy requests on which the draft of version 7 was right about two of three times."""
    generator = np.random.default_rng(0)
    samples = serve(make_llama(0), 12, temperature=0.0)
    chances = [(generator.random(24) < 0.66).astype(float) for _ in samples]
    played = [
        play(sample, chance, k=3, draft_version=7, generator=generator).sample
        for sample, chance in zip(samples, chances, strict=True)
    ]
    return played, chances


def test_a_draft_that_does_as_well_again_is_believed(served):
    samples, chances = served
    check_served(samples, chances, 7)
    check_served(samples, [chance[:10] for chance in chances], 7)  # as requests are cut that are too long


def test_a_draft_that_does_worse_on_what_it_drafted_is_not(served):
    samples, chances = served
    others = [chance / 2 for chance in chances]
    with pytest.raises(UnlikeServedError, match=r"version 7 \d\d% were accepted, and \d\d% would be now"):
        check_served(samples, others, 7)


def test_what_another_draft_drafted_or_was_sampled_otherwise_or_is_little_tells_nothing(served):
    samples, chances = served
    others = [chance / 2 for chance in chances]
    check_served(samples, others, 6)
    check_served([replace(sample, temperature=0.7) for sample in samples], others, 7)
    check_served(samples[:7], others[:7], 7)


def test_a_number_of_another_draft_or_registry_is_not_taken_for_this_version(served):
    samples, _ = served
    assert checkable(samples, 7, "present") == samples, "who drafted is not known"
    of_former, of_present = ([replace(one, draft_id=name) for one in samples] for name in ("former", "present"))
    assert checkable([*of_former, *of_present], 7, "present") == of_present
    assert checkable(samples, 7, since=5.0) == [one for one in samples if one.created_at >= 5]
