"""What is guessed is what followed before, and says how sure it is."""

import numpy as np

from hotdraft.serving.proposers.recent_text import RecentText
from hotdraft.serving.proposers.suffixes import NOTHING, NUM_KINDS, assumed_rates, guess


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def recent(*texts: list[int]) -> RecentText:
    kept = RecentText(4096)
    for text in texts:
        kept.append(text)
    return kept


def test_a_request_repeats_itself() -> None:
    """Prompt lookup."""
    assert guess(tokens(1, 2, 3, 4, 5, 9, 1, 2), None, 3).token_ids == (3, 4, 5)
    assert guess(tokens(1, 2, 3, 4, 5, 9, 1, 2), None, 8).token_ids == (3, 4, 5, 9, 1, 2), "no further than it goes"
    assert guess(tokens(5, 8, 5), None, 2).token_ids == (8, 5), "one token that came before is something"


def test_an_answer_is_like_another() -> None:
    kept = recent([40, 41, 42, 43, 44])
    assert guess(tokens(7, 40, 41), kept, 8).token_ids == (42, 43, 44), "and ends where that ended"
    assert guess(tokens(7, 40, 41), None, 8) == NOTHING


def test_the_place_that_matches_furthest_back_is_followed() -> None:
    kept = recent([1, 2, 3, 50], [9, 2, 3, 60])
    assert guess(tokens(1, 2, 3), kept, 1).token_ids == (50,)
    assert guess(tokens(9, 2, 3), kept, 1).token_ids == (60,)
    assert guess(tokens(1, 2, 3, 70, 8, 8, 1, 2, 3), recent([5, 3, 80]), 1).token_ids == (70,), (
        "own text or others'"
    )


def test_of_several_places_most_decide_and_of_few_the_newest() -> None:
    kept = recent([1, 2, 7], [1, 2, 7], [1, 2, 8])
    assert guess(tokens(1, 2), kept, 1).token_ids == (7,)
    assert guess(tokens(1, 2), recent([1, 2, 7], [1, 2, 8]), 1).token_ids == (8,)


def test_kinds_tell_long_matches_and_places_that_agree_from_others() -> None:
    rates = assumed_rates()
    assert len(rates) == NUM_KINDS
    agreeing = guess(tokens(1, 2), recent([1, 2, 7], [1, 2, 7]), 1)
    divided = guess(tokens(1, 2), recent([1, 2, 7], [1, 2, 8]), 1)
    long = guess(np.arange(14, dtype=np.int32), recent(list(range(20))), 1)
    assert rates[divided.kinds[0]] < rates[agreeing.kinds[0]] < rates[long.kinds[0]]
    several = guess(tokens(1, 2), recent([1, 2, 3, 4, 5]), 3)
    assert list(several.kinds) == sorted(several.kinds), "a token that follows matches further"


def test_a_guess_ends_where_it_is_too_unlikely_to_come() -> None:
    text = recent(list(range(30)))
    rates = np.full(NUM_KINDS, 0.5)
    assert len(guess(tokens(0, 1), text, 20, rates).token_ids) == 6, "half of half of … is less than a fiftieth"
    assert len(guess(tokens(0, 1), text, 20, np.ones(NUM_KINDS)).token_ids) == 20
    assert guess(tokens(0, 1), text, 20).token_ids == tuple(range(2, 22))


def test_nothing_is_guessed_without_a_likeness_or_room() -> None:
    kept = recent([1, 2, 3])
    for context, most in ((tokens(7), 4), (tokens(7, 8), 4), (tokens(1, 2), 0), (tokens(), 4), (tokens(2, 3), 4)):
        assert guess(context, kept, most) == NOTHING
