"""Stop strings found in text as it comes, at a cost that does not depend on how many there are.

Aho and Corasick, "Efficient string matching: an aid to bibliographic search", CACM 18 (1975).
"""

from collections import deque
from collections.abc import Iterable
from functools import cached_property


class StopStrings(tuple[str, ...]):
    """Strings of which any ends an answer; those of one request share what is built to look for them."""

    @cached_property
    def automaton(self) -> "Automaton":
        return Automaton(self)


class Automaton:
    """A state is the longest beginning of a string that the text ends with; 0 is none."""

    def __init__(self, strings: Iterable[str]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.depth = [0]
        """Characters of each state."""
        self.found = [0]
        """Characters of the longest string that ends there, 0 if none does."""
        self.shorter = [0]
        """The state to go on from where no next one fits: the longest end of this one that is a state too."""
        for string in strings:
            self._add(string)
        self._link()

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            following = self.next[state].setdefault(character, len(self.next))
            if following == len(self.next):
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.found.append(0)
                self.shorter.append(0)
            state = following
        self.found[state] = len(string)

    def _link(self) -> None:
        """Shallow states first, whose own links the deeper ones follow."""
        states = deque(self.next[0].values())
        while states:
            state = states.popleft()
            for character, following in self.next[state].items():
                self.shorter[following] = self.step(self.shorter[state], character)
                self.found[following] = self.found[following] or self.found[self.shorter[following]]
                states.append(following)

    def step(self, state: int, character: str) -> int:
        while character not in self.next[state]:
            if state == 0:
                return 0
            state = self.shorter[state]
        return self.next[state][character]


class StopMatcher:
    """Reads a text piece by piece."""

    def __init__(self, strings: StopStrings) -> None:
        self._automaton = strings.automaton
        self._state = 0

    @property
    def possible(self) -> int:
        """Length of the longest end of the text that a string may begin with."""
        return self._automaton.depth[self._state]

    def read(self, piece: str) -> tuple[int, int] | None:
        """Where the earliest of the strings that `piece` completes begins and ends, None if it completes none.

        Counted from the piece's first character: it begins at a negative one where it began before.
        """
        automaton, earliest = self._automaton, None
        for position, character in enumerate(piece, start=1):
            self._state = automaton.step(self._state, character)
            if length := automaton.found[self._state]:
                begins = position - length
                if earliest is None or begins < earliest[0]:
                    earliest = begins, position
        return earliest
