"""The thread that keeps the live draft at the registry's champion, and the champion honest.

The alias in the registry is the only truth: a promotion by the trainer, a rollback by the watchdog
and a command by a person all move the alias, and this thread follows it. Only a server that starts
while the registry cannot be asked takes up what served last, until the registry answers.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from hotdraft.pipeline.config.origins import without_password
from hotdraft.pipeline.store.connection import STORE_ERRORS, StoreError, in_one_line
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.system.poller import Poller
from hotdraft.serving.messages.events import SwapReason
from hotdraft.serving.updates.acceptance_watch import AcceptanceWatch
from hotdraft.serving.updates.champion import ChampionFollower
from hotdraft.serving.updates.last_served import LastServedFile
from hotdraft.serving.updates.swapper import NotNowError, Swapper

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
NEWS_SECONDS = 5.0
"""Between two questions for newly refused versions, each of which costs as much as one for the champion."""
COUNT_SECONDS = 600.0
"""Between two counts of all refused versions while the champion stays: a count asks for each of them."""
REPEAT_SECONDS = 600.0
"""After which the same failure is logged again."""


class AdapterSync:
    """A thread that polls the registry and swaps, and gives the watch its turns."""

    def __init__(
        self,
        swapper: Swapper[Any],
        registry: AdapterRegistry,
        last_served: LastServedFile,
        watch: AcceptanceWatch,
    ) -> None:
        self._swapper = swapper
        self._registry = registry
        self._follower = ChampionFollower(swapper, registry, last_served)
        self._watch = watch
        self.errors = 0
        """Failures in following the registry."""
        self.problem: str | None = None
        """Why the registry cannot be used, while that is so."""
        self.waits: str | None = None
        """What a swap that is due waits for."""
        self._refused: set[int] = set()
        self._counted: tuple[int | None, float] | None = None
        """With which champion, and when, all refused versions were counted last."""
        self._news_at = 0.0
        self._said: tuple[str, float] | None = None
        """The failure that was logged last, and when."""
        follow = partial(self._turn, "promotion")
        self._poller = Poller(follow, POLL_SECONDS, name="adapter-sync", failing="adapter sync, which goes on")

    @property
    def refused(self) -> int:
        """How many versions in the registry were refused, by the gate or after they served."""
        return len(self._refused)

    @property
    def unusable(self) -> Mapping[int, str]:
        """Why, by version, of those that should serve and cannot do so here."""
        return {version: mark.why for version, mark in self._follower.unusable.items()}

    @property
    def swap_failures(self) -> int:
        return self._follower.failures

    def start(self) -> None:
        """Serve the champion, or what served last if nobody can say which that is, then keep following it."""
        if not self._turn("startup") and not self._swapper.live_version:
            self._do(self._follower.take_up_last_served)
        self._poller.start()

    def stop(self) -> None:
        self._poller.stop()

    def _turn(self, reason: SwapReason) -> bool:
        """Watch, follow and count; whether the store could be read. One that cannot be written is counted."""
        is_told = self._do(self._watch.turn)
        for part in (partial(self._follow, reason), self._count_refused):
            if not self._do(part):
                return False
        if is_told:
            if self.problem is not None:
                logger.info("the adapter registry can be used again")
            self.problem = None
        else:
            self.errors += 1
        return True

    def _follow(self, reason: SwapReason) -> None:
        try:
            self._follower.follow(reason)
        except NotNowError as error:
            if str(error) != self.waits:
                self.waits = str(error)
                logger.warning("a swap waits, version %d serves on: %s", self._swapper.live_version, error)
        else:
            self.waits = None

    def _do(self, part: Callable[[], None]) -> bool:
        """Whether the store answered `part`; what else fails in it keeps the others from nothing."""
        try:
            part()
        except (StoreError, *STORE_ERRORS) as error:
            known, self.problem = self.problem, without_password(in_one_line(error))
            if known is None:
                logger.warning("the adapter registry cannot be used, version %d serves on: %s",
                               self._swapper.live_version, self.problem)  # fmt: skip
            return False
        except CancelledError:  # the engine ends
            return False
        except Exception as error:  # noqa: BLE001 -- the top of a thread that must outlive whatever is in the registry
            self.errors += 1
            self._say(f"{type(error).__name__}: {error}")
        return True

    def _say(self, failure: str) -> None:
        now = time.monotonic()
        if self._said is None or self._said[0] != failure or now - self._said[1] > REPEAT_SECONDS:
            self._said = failure, now
            logger.exception("adapter sync, which goes on: %s", failure)

    def _count_refused(self) -> None:
        """New versions are refused one after the other; what comes in another order is in the next count of all."""
        champion, now = self._follower.champion, time.monotonic()
        if self._counted is None or self._counted[0] != champion or now - self._counted[1] > COUNT_SECONDS:
            self._refused = self._refused | self._registry.refused()  # one that a person promoted was refused
            self._counted = champion, now
        elif now >= self._news_at:
            self._refused = self._refused | self._registry.refused(after=max(self._refused, default=0))
        else:
            return
        self._news_at = now + NEWS_SECONDS
