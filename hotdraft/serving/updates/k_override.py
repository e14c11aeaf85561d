"""Keeps the engine's k at what the control file says."""

import logging
import threading
import time
from concurrent.futures import CancelledError

from hotdraft.pipeline.config.serving import KSetting
from hotdraft.pipeline.loop.controls import ControlFile
from hotdraft.pipeline.system.poller import Poller
from hotdraft.serving.engine.engine import Engine

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RETRY_SECONDS = 60.0
"""After an override that could not be: measuring what rounds cost holds up requests for seconds, also in vain."""


class KOverride:
    """A thread that polls the control file; without an override k is what the engine began with.

    For an automatic k that the engine was not started with, the costs of rounds are measured first,
    as soon as no request runs. An override that cannot be is logged, k stays as configured, and it is tried again.
    """

    def __init__(self, engine: Engine, controls: ControlFile) -> None:
        self.configured = engine.k
        self._engine = engine
        self._controls = controls
        self._followed: KSetting | None = None
        """The override that was last seen."""
        self._failure = ""
        """Why it could not be, as it was last said."""
        self._retry_at = 0.0
        """On the monotonic clock."""
        self._lock = threading.Lock()
        self._poller = Poller(self.follow, POLL_SECONDS, name="k-override", failing="k cannot be followed, for now")

    @property
    def largest(self) -> int:
        """What k can be set to, at most."""
        return self._engine.decoder.max_k

    def start(self) -> None:
        """Follow the file once, then on and on. The engine must have been started."""
        self.follow()
        self._poller.start()

    def stop(self) -> None:
        self._poller.stop()

    def follow(self) -> None:
        """Set the engine's k to what the file says now."""
        with self._lock:
            wanted = self._controls.read().k
            is_news, self._followed = wanted != self._followed, wanted
            if is_news:
                self._failure = ""
            elif time.monotonic() < self._retry_at:
                return
            try:
                if wanted == "auto" and self.largest and not self._costs_are_known():
                    if is_news:
                        logger.info("k will be auto once no request runs and the costs of rounds are measured")
                    return
                k = self.configured if wanted is None else wanted
                changed = k != self._engine.k
                self._engine.k = k
            except (ValueError, RuntimeError, CancelledError) as error:
                if str(error) != self._failure:
                    logger.warning("the override k = %s does not hold, k is %s: %s", wanted, self.configured, error)
                self._failure, self._retry_at = str(error), time.monotonic() + RETRY_SECONDS
                self._engine.k = self.configured
            else:
                if changed or (is_news and wanted is not None):
                    logger.info("k is %s, %s", k, "as configured" if wanted is None else "an operator's override")

    def _costs_are_known(self) -> bool:
        if self._engine.k_choice.adaptive is None:
            self._engine.between_rounds(self._measure).result()
        return self._engine.k_choice.adaptive is not None

    def _measure(self) -> None:
        if not self._engine.num_running:
            self._engine.k_choice.measure_costs()
