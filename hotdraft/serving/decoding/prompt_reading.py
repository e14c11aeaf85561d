"""Whether the draft is to read a prompt: that takes time, which what it drafts must save.

What it saves is at first expected, by what text alone would yield at the places where rounds begin. Those are where
a draft went wrong, and not where text did: of text too much is expected, by up to a tenth. So where a draft is
expected to save nothing, rounds without it show what they bring.
"""

from dataclasses import dataclass

TRIED = 8
"""Requests, of each that run at once, that it reads at first, and one in so many where it does not pay."""
MEMORY = 0.7
"""Weight of the past, by so many: those that are tried are few."""
RECENT = 0.95
"""Weight of the past, by round, in what rounds bring."""
KNOWN_BY = 16
"""Rounds by which that is known."""
FORGOTTEN = 512
"""Rounds of the other kind after which it is not."""


@dataclass
class _Speed:
    """Tokens of rounds of one kind, over those of plain ones that take as long."""

    mean: float = 0.0
    rounds: int = 0
    ago: int = 0
    """Rounds of the other kind since."""

    @property
    def is_known(self) -> bool:
        return self.rounds >= KNOWN_BY and self.ago <= FORGOTTEN

    def learn(self, speed: float) -> None:
        if self.ago > FORGOTTEN:
            self.rounds = 0
        self.rounds, self.ago = self.rounds + 1, 0
        self.mean += max(1 / self.rounds, 1 - RECENT) * (speed - self.mean)


class PromptReading:
    """What is drafted for one request beside others that are not is dear: they are tried together."""

    def __init__(self) -> None:
        self._saved = 0.0
        """Seconds a request, of those whose prompt the draft has read, less what that took."""
        self._to_try = float(TRIED)
        """Requests, over those that run at once."""
        self._passed_over = 0.0
        """Likewise since the last that were tried."""
        self._drafted, self._undrafted = _Speed(), _Speed()

    def pays(self, at_once: int) -> bool:
        """For the next request, one of so many."""
        if self._to_try > 0:
            self._to_try -= 1 / at_once
            return True
        if self._saved > 0 or self._is_faster:
            return True
        self._passed_over += 1 / at_once
        if self._passed_over < TRIED:
            return False
        self._passed_over, self._to_try = 0.0, 1 - 1 / at_once
        return True

    def ended(self, saved: float, reading: float, at_once: int) -> None:
        """One, of so many, for which it took so many seconds of `reading` to save others."""
        memory = MEMORY ** (1 / at_once)
        self._saved = memory * self._saved + (1 - memory) * (saved - reading)

    def observe(self, speed: float, *, drafted: bool) -> None:
        """A round for all or none of whose rows the draft reads brought so many times the tokens of plain ones."""
        own, other = (self._drafted, self._undrafted) if drafted else (self._undrafted, self._drafted)
        own.learn(speed)
        other.ago += 1

    @property
    def _is_faster(self) -> bool:
        """Whether rounds with the draft were."""
        known = self._drafted.is_known and self._undrafted.is_known
        return known and self._drafted.mean > self._undrafted.mean
