"""A ring that forgets what is oldest, and finds what it still has by two tokens."""

import time

import numpy as np
import pytest

from hotdraft.serving.proposers.recent_text import BYTES_A_TOKEN, END, RecentText


def after(text: RecentText, first: int, second: int, count: int) -> list[list[int]]:
    """What follows the pair, the newest first."""
    places = text.found(first, second, most=16, margin=0)
    follows: list[list[int]] = text.at(places[:, None] + np.arange(1, count + 1)).tolist()
    return follows


def test_a_pair_is_found_where_it_was_the_newest_first() -> None:
    text = RecentText(100)
    text.append([1, 2, 3, 1, 2, 4])
    text.append([7, 1, 2, 5])
    assert after(text, 1, 2, 2) == [[5, END], [4, END], [3, 1]]
    assert after(text, 2, 3, 1) == [[1]]
    assert [follows for follows in after(text, 4, 7, 1) if follows] == [], "a pair does not reach over an end"


def test_at_most_as_many_places_as_asked_for() -> None:
    text = RecentText(1000)
    text.append([8, 9] * 100)
    assert len(text.found(8, 9, most=5, margin=0)) == 5


@pytest.mark.parametrize("capacity", [16, 61, 256])
def test_all_that_is_in_the_ring_is_found_and_nothing_else(capacity: int) -> None:
    random, text = np.random.default_rng(capacity), RecentText(capacity)
    written: list[int] = []
    for _ in range(60):
        answer = random.integers(0, 6, int(random.integers(1, 40)))
        text.append(answer)
        written += [*answer[1 - capacity :].tolist(), END]
        held = written[-capacity:]
        assert text.newest(capacity).tolist() == held
        for first in range(6):
            for second in range(6):
                wanted = [
                    index for index in range(1, len(held)) if (held[index - 1], held[index]) == (first, second)
                ]
                places = text.found(first, second, most=10**6, margin=1)
                found = [
                    index
                    for index in (places - text.length + len(held)).tolist()
                    if (held[index - 1], held[index]) == (first, second)  # others have its hash
                ]
                assert found == sorted(set(wanted) & set(found), reverse=True)
                assert set(wanted) == set(found)


@pytest.mark.parametrize("capacity", [400, 1021])
def test_texts_are_found_alike_whether_added_one_by_one_or_together(capacity: int) -> None:
    random = np.random.default_rng(capacity)
    texts = [random.integers(0, 6, int(random.integers(0, 12))).tolist() for _ in range(30)]
    one_by_one, together = RecentText(capacity), RecentText(capacity)
    for text in texts:
        one_by_one.append(text)
    together.append([token for text in texts for token in [*text, END]][:-1])
    assert together.newest(capacity).tolist() == one_by_one.newest(capacity).tolist()
    for first in range(6):
        for second in (END, *range(6)):
            found = [text.found(first, second, most=10**6, margin=1) for text in (together, one_by_one)]
            assert found[0].tolist() == found[1].tolist(), "with what merely has the hash"


def test_an_answer_longer_than_the_ring_leaves_its_end() -> None:
    text = RecentText(8)
    text.append(range(100))
    assert text.newest(8).tolist() == [93, 94, 95, 96, 97, 98, 99, END]


def test_ten_million_tokens_stay_within_the_bound() -> None:
    limit = 1 << 20
    text = RecentText(limit // BYTES_A_TOKEN)
    answers = np.random.default_rng(0).zipf(1.3, (200, 5000)).clip(max=49151)
    for turn in range(10):
        for answer in answers:
            text.append((answer + turn) % 49152)
    assert text.length > 10_000_000
    assert text.num_bytes <= limit
    began = time.thread_time()
    for first, second in answers[:, :2]:
        text.found(int(first), int(second), most=16, margin=16)
    assert (time.thread_time() - began) / len(answers) < 0.01, "a walk is short, however much was seen"
