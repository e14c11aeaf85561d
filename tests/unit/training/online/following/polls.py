"""How long following goes on, and what happens meanwhile."""

import threading


class StopAfterPolls(threading.Event):
    def __init__(self, polls: int) -> None:
        super().__init__()
        self.polls = polls

    def wait(self, timeout: float | None = None) -> bool:
        self.polls -= 1
        if self.polls == 0:
            self.set()
        return super().wait(timeout)


class Watch(StopAfterPolls):
    """Does something at one of the polls."""

    def __init__(self, polls, at, act):
        super().__init__(polls)
        self.at, self.act = at, act

    def wait(self, timeout=None):
        if self.polls == self.at:
            self.act()
        return super().wait(timeout)
