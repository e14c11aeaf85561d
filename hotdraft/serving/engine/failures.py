"""What fails in the engine's threads and is survived: counted by where, told once."""

import logging
import threading
from typing import Literal, get_args

logger = logging.getLogger(__name__)

Place = Literal["prefill", "round", "target", "draft", "output", "record", "states", "listener"]
"""Reading a prompt, a round, either model's logits, telling a client, keeping a sample and the target's states of
it, telling listeners."""


class Failures:
    """The first of each kind is logged with its traceback, the others only count: there may be one each round."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(get_args(Place), 0)
        self._lock = threading.Lock()
        self._logged: set[tuple[Place, type[Exception]]] = set()

    def add(self, place: Place, error: Exception, what_ends: str) -> None:
        kind = (place, type(error))
        with self._lock:
            self.counts[place] += 1
            is_news = kind not in self._logged
            self._logged.add(kind)
        if is_news:
            logger.error("%s failed, %s: %s", place, what_ends, brief(error), exc_info=error)


def brief(error: BaseException) -> str:
    """One line for people."""
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__
