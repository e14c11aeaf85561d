"""What an examination says, and how long it may take."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    about: str
    state: Literal["ok", "warning", "problem"]
    """A problem keeps hotdraft from its work, or will; a warning costs something."""
    says: str
    mend: str | None = None
    """What to do, with the command; None where all is well."""


def ok(about: str, says: str) -> Finding:
    return Finding(about, "ok", says)


def warning(about: str, says: str, mend: str) -> Finding:
    return Finding(about, "warning", says, mend)


def problem(about: str, says: str, mend: str) -> Finding:
    return Finding(about, "problem", says, mend)


def within(seconds: float, about: str, examine: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What `examine` finds, or that it did not come back in `seconds` or broke down.

    It runs in a thread that nobody waits for afterwards: a store that is away may answer never.
    """
    found: list[Finding] = []
    done = threading.Event()

    def run() -> None:
        try:
            found.extend(examine())
        except PermissionError as error:
            mend = "run this as the user that serves, or see whose it is"
            found.append(problem(about, f"{error.filename} may not be looked at", mend))
        done.set()

    thread = threading.Thread(target=run, name=f"examine-{about}", daemon=True)
    thread.start()
    thread.join(seconds)
    if done.is_set():
        return found
    if thread.is_alive():
        return [problem(about, f"no answer in {seconds:g} s", "see that its address is right and that it is up")]
    return [problem(about, "the examination broke down", "read the error above: it says what it met")]
