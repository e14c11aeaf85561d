"""Stop strings by automaton, held against looking for each of them anew."""

import random

from hotdraft.serving.messages.stop_strings import Automaton, StopMatcher, StopStrings


def naive(strings: list[str], text: str) -> int:
    """Longest end of a text that one of the strings begins with."""
    return max((n for s in strings for n in range(len(s)) if n <= len(text) and text.endswith(s[:n])), default=0)


def test_it_finds_what_looking_for_each_string_finds() -> None:
    chance = random.Random(0)
    ended = 0
    for _ in range(3000):
        strings = ["".join(chance.choices("ab☃", k=chance.randint(1, 6))) for _ in range(chance.randint(1, 6))]
        matcher, text = StopMatcher(StopStrings(strings)), ""
        for _ in range(12):
            piece = "".join(chance.choices("ab☃", k=chance.randint(0, 4)))
            places, before, text = matcher.read(piece), len(text), text + piece
            found = [at for string in strings if (at := text.find(string)) >= 0]
            assert (None if places is None else before + places[0]) == min(found, default=None)
            if places is not None:
                begins, ends = (before + place for place in places)
                assert text[begins:ends] in strings
                ended += 1
                break
            assert matcher.possible == naive(strings, text)
    assert ended > 1000


def test_a_step_costs_the_same_among_many_strings_as_among_one() -> None:
    """Links followed over a text are at most as many as its characters, whatever the strings."""
    strings = StopStrings(f"{'a' * 200}{number}" for number in range(1000))

    class Counting(list):
        reads = 0

        def __getitem__(self, state):
            Counting.reads += 1
            return super().__getitem__(state)

    matcher = StopMatcher(strings)
    strings.automaton.next = Counting(strings.automaton.next)
    text = ("a" * 199 + "b") * 20
    assert matcher.read(text) is None
    assert Counting.reads <= 4 * len(text)


def test_answers_of_one_request_share_the_automaton() -> None:
    strings = StopStrings(("one", "two"))
    assert StopMatcher(strings)._automaton is StopMatcher(strings)._automaton
    assert strings == ("one", "two")


def test_no_strings_hold_nothing() -> None:
    matcher = StopMatcher(StopStrings())
    assert matcher.read("text") is None
    assert matcher.possible == 0
    assert Automaton(()).next == [{}]
