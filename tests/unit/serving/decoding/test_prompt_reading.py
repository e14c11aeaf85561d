"""When the draft reads prompts, by what it saves and what reading takes."""

import pytest

from hotdraft.serving.decoding.prompt_reading import FORGOTTEN, KNOWN_BY, TRIED, PromptReading


def answered(reading: PromptReading, saved: float, requests: int, at_once: int = 1) -> list[bool]:
    """Which of them the draft read, where it saves so much of a request and takes a second to read it."""
    read = []
    for _ in range(requests):
        read.append(reading.pays(at_once))
        if read[-1]:
            reading.ended(saved, 1.0, at_once)
    return read


def test_the_first_are_read_and_then_one_in_eight_of_those_that_do_not_pay() -> None:
    read = answered(PromptReading(), 0.9, TRIED + 80)
    assert read[:TRIED] == [True] * TRIED
    assert sum(read[TRIED:]) == 10


def test_what_pays_is_read() -> None:
    assert all(answered(PromptReading(), 1.1, 100))


@pytest.mark.parametrize("at_once", [1, 8])
def test_a_draft_that_comes_to_pay_is_found_out(at_once: int) -> None:
    reading = PromptReading()
    answered(reading, 0.5, 40 * at_once, at_once)
    answered(reading, 4.0, 2 * TRIED * at_once, at_once)
    assert all(answered(reading, 4.0, 10 * at_once, at_once))


def test_requests_that_run_at_once_are_tried_together() -> None:
    reading = PromptReading()
    answered(reading, 0.5, 8 * TRIED, at_once=8)
    read = answered(reading, 0.5, 16 * TRIED, at_once=8)
    first = read.index(True)
    assert read[first : first + 8] == [True] * 8
    assert not any(read[first + 8 : first + 40])


def served(with_draft: float, without: float, took: float, requests: int = 1000) -> float:
    """The share that the draft reads of requests of 10 rounds of a second, where it is expected to save nothing.

    With it a round gives so many tokens, and without; to read a prompt `took` seconds.
    """
    reading, read = PromptReading(), 0
    for _ in range(requests):
        drafted = reading.pays(1)
        read += drafted
        for _ in range(10):
            reading.observe(with_draft if drafted else without, 1.0, drafted=drafted)
        if drafted:
            reading.ended(0.0, took, 1)
    return read / requests


def test_where_it_is_expected_to_save_nothing_rounds_show_whether_it_does() -> None:
    assert served(1.9, 1.5, took=1.0) > 0.9
    assert served(1.4, 1.5, took=1.0) < 0.2
    assert served(1.9, 1.5, took=4.0) < 0.2, "what reading prompts takes counts"


def test_what_rounds_without_it_brought_is_asked_again_after_a_while() -> None:
    reading = PromptReading()
    for _ in range(KNOWN_BY):
        reading.observe(1.9, 1.0, drafted=True)
        reading.observe(1.5, 1.0, drafted=False)
    for _ in range(TRIED):
        reading.pays(1)
        reading.ended(0.0, 0.1, 1)
    for _ in range(FORGOTTEN):
        assert reading.pays(1)
        reading.observe(1.9, 1.0, drafted=True)
    reading.observe(1.9, 1.0, drafted=True)
    assert not reading.pays(1)
