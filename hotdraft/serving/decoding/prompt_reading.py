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
RECENT = 0.97
"""Weight of the past, by round, in what rounds bring."""
KNOWN_BY = 16
"""Rounds by which that is known."""
FORGOTTEN = 512
"""Rounds of the other kind after which it is not."""


@dataclass
class _Speed:
    """Of rounds of one kind: what their tokens would have taken in plain ones, over what they took."""

    plain: float = 0.0
    seconds: float = 0.0
    rounds: int = 0
    ago: int = 0
    """Rounds of the other kind since."""

    @property
    def is_known(self) -> bool:
        return self.rounds >= KNOWN_BY and self.ago <= FORGOTTEN

    def learn(self, plain: float, seconds: float) -> None:
        if self.ago > FORGOTTEN:
            self.plain, self.seconds, self.rounds = 0.0, 0.0, 0
        self.plain, self.seconds = RECENT * self.plain + plain, RECENT * self.seconds + seconds
        self.rounds, self.ago = self.rounds + 1, 0


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
        self._reading = 0.0
        """Seconds, of requests that ended since the last round that the draft was asked in."""

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
        self._reading += reading

    def observe(self, plain: float, seconds: float, *, drafted: bool) -> None:
        """What a round took of whose rows the draft reads all or none, and what as many tokens take `plain`."""
        if drafted:
            self._drafted.learn(plain, seconds + self._reading)
            self._reading = 0.0
            self._undrafted.ago += 1
        else:
            self._undrafted.learn(plain, seconds)
            self._drafted.ago += 1

    @property
    def _is_faster(self) -> bool:
        """Whether rounds with the draft were."""
        one, other = self._drafted, self._undrafted
        return one.is_known and other.is_known and one.plain * other.seconds > other.plain * one.seconds
