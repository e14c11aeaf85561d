"""This server's part in the watch over a version that has just begun to serve.

It sums up the acceptance of the requests that it serves, tells the registry while the version is on trial, and
looks at what all servers told; see `pipeline.watch`. Whoever finds a fall rolls back.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator

from mlflow.exceptions import MlflowException

from hotdraft.pipeline.replay.sample import tells_of_draft
from hotdraft.pipeline.store.connection import ABSENT
from hotdraft.pipeline.store.errors import ChampionPinnedError, RegistryError
from hotdraft.pipeline.store.registry import AdapterRegistry
from hotdraft.pipeline.watch.evidence import Evidence, Tally, kind_of, short_digest
from hotdraft.pipeline.watch.trial import Trial, Trials
from hotdraft.pipeline.watch.watchdog import Fall
from hotdraft.serving.messages.events import RoundStats, SwapClock, SwapEvent
from hotdraft.serving.messages.request import GenerationRequest, RequestStats

logger = logging.getLogger(__name__)

RECENT_REQUESTS = 60
"""Of each client and kind: what the next version is held up to."""
FEW_REQUESTS = 8
"""On a version that hardly served a client's kind: those on the one before it are needed as well."""
OPEN_SECONDS = 60.0
"""After a swap: a server that knows nothing of before does not open a trial, and takes part in one."""
MAX_ENTRIES = 512
"""Clients times kinds in memory."""


class AcceptanceWatch:
    """An `EngineListener`; `turn` is called by the thread that follows the champion, about once a second.

    A request's rate is that of its rounds' first drafted tokens: further ones are accepted more often once those
    before them were, so that all of them together tell of k as well. Requests that were begun on another version,
    that little was drafted for, or that are not recorded tell nothing. Clients are known by digests, which differ
    from version to version where others can read them.
    """

    def __init__(self, trials: Trials, registry: AdapterRegistry) -> None:
        self._trials = trials
        self._registry = registry
        self._lock = threading.Lock()
        self._clock = SwapClock()
        self._past = _Window()
        """What each client's kind of request got when it was last served, before the last swap."""
        self._current = _Window()
        self._version = 0
        """On trial as far as this server knows; 0 if none is."""
        self._trial: Trial | None = None
        self._open_until = 0.0
        """Till when another server is waited for that opens the trial, on the monotonic clock."""
        self._told = 0
        """Requests that the registry was told of."""
        self._left: set[int] = set()
        """Versions whose trial is over for this server, whose evidence is to be taken back."""

    def on_round(self, stats: RoundStats) -> None: ...

    def on_finish(self, request: GenerationRequest, stats: RequestStats, finish_reason: str) -> None:
        with self._lock:
            told = tells_of_draft(stats.examined_tokens, stats.completion_tokens)
            if told and request.record and self._clock.is_of_one_version(stats):
                params, lengths = request.params, (stats.prompt_tokens, stats.completion_tokens)
                kind = kind_of(request.domain, *lengths, params.temperature, seeded=params.seed is not None)
                self._current.add(request.client, kind, stats.first_accepted / stats.first_examined)

    def on_swap(self, event: SwapEvent) -> None:
        """A version that follows an older one is tried. One that was returned to is not, and what the newer one
        did is no measure for any other."""
        with self._lock:
            self._clock.swapped(event.version)
            if event.version == event.previous_version:  # workers that differed are at it again
                return
            follows = event.version > event.previous_version
            if follows:
                self._past.take(self._current)
            self._current = _Window()
            if self._version:
                self._left.add(self._version)
            self._left.discard(event.version)  # what it tells of another trial is its own
            self._version = event.version if follows else 0
            self._trial, self._told = None, 0
            self._open_until = time.monotonic() + OPEN_SECONDS

    def turn(self) -> None:
        """Tell what is new, look if a look is due, roll back for a fall. Raises what a store that is away does."""
        try:
            self._watch()
        finally:
            self._leave()

    def _leave(self) -> None:
        """Again at each turn, until the store lets it."""
        with self._lock:
            left = sorted(self._left)
        for version in left:
            self._trials.leave(version)
            self._left.discard(version)

    def _watch(self) -> None:
        with self._lock:
            version, trial, served = self._version, self._trial, self._current.requests
            before, after = self._past.recent(version), self._current.since(version)
            open_until = self._open_until
        if not version or (trial is not None and served == self._told):
            return
        try:
            if trial is None:
                trial = self._join(version, before)
                if trial is None and time.monotonic() < open_until:
                    return
            found = self._look(version, trial, after) if trial is not None and not trial.over else None
        except MlflowException as error:
            if error.error_code not in ABSENT:
                raise
            trial = found = None  # someone deleted the version
        if isinstance(found, Fall):
            self._roll_back(version, found)
        ended = not isinstance(found, Trial) or found.over
        with self._lock:
            if self._version == version:
                self._version = 0 if ended else version
                self._trial, self._told = trial, served
            if trial is not None and ended:
                self._left.add(version)

    def _join(self, version: int, before: Evidence) -> Trial | None:
        may_open = bool(before) and self._registry.champion() == version
        trial = self._trials.join(version, may_open=may_open)
        if trial is not None and not trial.over:
            self._trials.tell(version, trial, "before", before)
        return trial

    def _look(self, version: int, trial: Trial, after: Evidence) -> Trial | Fall | None:
        if after:
            self._trials.tell(version, trial, "after", after)
        return self._trials.look(version)

    def _roll_back(self, version: int, fall: Fall) -> None:
        try:
            self._registry.rollback(reason=str(fall), version=version)
            logger.warning("rolled back version %d: %s", version, fall)
        except ChampionPinnedError:
            warning = f"{fall}; pinned by hand, so it stays"
            logger.warning("version %d: %s", version, warning)
            self._registry.tell(version, {"watchdog": warning})
        except RegistryError as error:  # another server found it too, or a person was first
            logger.info("version %d was not rolled back: %s", version, error)
        self._trials.forget(version)


class _Window:
    """Rates of the requests of each client and kind, of at most `MAX_ENTRIES`.

    Beyond that the client that has most kinds loses the one it asked for longest ago: a client that makes up
    domains displaces its own.
    """

    def __init__(self) -> None:
        self.requests = 0
        self._clients: dict[str, dict[str, _Entry]] = {}
        """The one that was served last at the end; so are its kinds."""
        self._size = 0

    def add(self, client: str, kind: str, rate: float) -> None:
        entry = self._discard(client, kind) or _Entry()
        entry.add(rate)
        self._insert(client, kind, entry)
        self.requests += 1

    def take(self, newer: "_Window") -> None:
        """Replace what `newer` knows as well; of what it hardly knows, add to it."""
        for client, kinds in newer._clients.items():
            for kind, entry in kinds.items():
                self._insert(client, kind, entry.after(self._discard(client, kind)))

    def recent(self, version: int) -> Evidence:
        """Over the last requests of each."""
        return {key: entry.recent() for key, entry in self._entries(version)}

    def since(self, version: int) -> Evidence:
        """Over all requests."""
        return {key: entry.all for key, entry in self._entries(version)}

    def _entries(self, version: int) -> "Iterator[tuple[tuple[str, str], _Entry]]":
        for client, kinds in self._clients.items():
            digest = short_digest(f"{version} {client}")
            for kind, entry in kinds.items():
                yield (digest, kind), entry

    def _discard(self, client: str, kind: str) -> "_Entry | None":
        entry = self._clients.get(client, {}).pop(kind, None)
        self._size -= entry is not None
        return entry

    def _insert(self, client: str, kind: str, entry: "_Entry") -> None:
        kinds = self._clients.pop(client, {})
        kinds[kind] = entry
        self._clients[client] = kinds
        self._size += 1
        if self._size > MAX_ENTRIES:
            richest = max(self._clients, key=lambda name: len(self._clients[name]))
            self._discard(richest, next(iter(self._clients[richest])))
            if not self._clients[richest]:
                del self._clients[richest]


class _Entry:
    def __init__(self) -> None:
        self.all = Tally()
        self._rates: deque[float] = deque(maxlen=RECENT_REQUESTS)

    def add(self, rate: float) -> None:
        self.all += Tally(1, rate, rate * rate)
        self._rates.append(rate)

    def after(self, older: "_Entry | None") -> "_Entry":
        if older is None or len(self._rates) >= FEW_REQUESTS:
            return self
        for rate in self._rates:
            older.add(rate)
        return older

    def recent(self) -> Tally:
        return Tally(len(self._rates), sum(self._rates), sum(rate * rate for rate in self._rates))
