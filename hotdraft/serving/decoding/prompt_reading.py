"""Whether the draft is to read a prompt: that takes time, which what it drafts must save."""

TRIED = 8
"""Requests, of each that run at once, that it reads at first, and one in so many where it does not pay."""
MEMORY = 0.7
"""Weight of the past, by so many: those that are tried are few."""


class PromptReading:
    """What is drafted for one request beside others that are not is dear: they are tried together."""

    def __init__(self) -> None:
        self._saved = 0.0
        """Seconds a request, of those whose prompt the draft has read, less what that took."""
        self._to_try = float(TRIED)
        """Requests, over those that run at once."""
        self._passed_over = 0.0
        """Likewise since the last that were tried."""

    def pays(self, at_once: int) -> bool:
        """For the next request, one of so many."""
        if self._to_try > 0:
            self._to_try -= 1 / at_once
            return True
        if self._saved > 0:
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
