"""How the server ends: SIGTERM lets what was accepted finish, within a time limit."""

import asyncio
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.http.connections import ACCEPTS_A_TURN, Connections

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
SETTLE_SECONDS = 0.2
"""For connections that the kernel has taken and we have not: closing the door on them would cut them off."""
SETTLE_TURNS = 100
"""Of the event loop, at most, until it has taken the last of them: a crowd that comes back at once has no last."""
TURNS_TO_LET_IN = 3
"""That asyncio takes to accept a connection, to set it up, and to tell its protocol."""
LAST_WORDS_SECONDS = 5
"""For answers on their way to slow clients."""
KEEP_ALIVE_SECONDS = 75
"""Of an idle connection: longer than clients and proxies keep theirs, who would else send into one that ends."""
BACKLOG = 2048
"""Connections that the kernel keeps for us, of a crowd that comes at once."""


class DrainingServer(uvicorn.Server):
    """Serves until SIGTERM or SIGINT, then `drain_seconds` longer for the requests it has accepted.

    Meanwhile it answers others, and `/ready`, with 503. What is not finished then is cancelled and told so,
    as is everything at a second signal. `run` returns afterwards, so that the process can exit with 0.
    """

    def __init__(
        self,
        app: FastAPI,
        config: ServerConfig,
        engine: Engine,
        connections: Connections,
        on_listening: Callable[[int], object] = lambda port: None,
    ) -> None:
        """`on_listening` is told the port once clients are answered there."""
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                log_config=None,
                http=connections.protocol,  # type: ignore[arg-type]  # it is called like the class
                ws="none",
                backlog=ACCEPTS_A_TURN,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=LAST_WORDS_SECONDS,
            )
        )
        self._engine = engine
        self._on_listening = on_listening
        self._drain_seconds = config.drain_seconds
        self._asked = False
        self._told = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._drain, name="drain", daemon=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._thread.start()  # now: at the end there may be no room for another thread
        await super().startup(sockets)
        self._listen(BACKLOG)  # asyncio has one number for both backlogs, its own and the kernel's
        if self.started:
            self._on_listening(self.servers[0].sockets[0].getsockname()[1])

    async def on_tick(self, counter: int) -> bool:
        """Whether to end: also once the engine has died, for whoever minds the process to begin another."""
        return await super().on_tick(counter) or not self._engine.is_alive

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._listen(0)  # who comes now is refused once the door is closed
        await asyncio.sleep(SETTLE_SECONDS)
        await self._let_in()
        await super().shutdown(sockets)

    async def _let_in(self) -> None:
        """Who has come to the door: closing it drops those that asyncio has accepted and not yet set up, too."""
        listeners = [listener for server in self.servers for listener in server.sockets]
        quiet_turns = 0
        for _ in range(SETTLE_TURNS):
            comes_someone = bool(select.select(listeners, [], [], 0)[0])
            quiet_turns = 0 if comes_someone else quiet_turns + 1
            if quiet_turns == TURNS_TO_LET_IN:
                break
            await asyncio.sleep(0)

    def _listen(self, backlog: int) -> None:
        for server in self.servers:
            for listener in server.sockets:
                with listener.dup() as same:
                    same.listen(backlog)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        asked, self._asked = self._asked, True  # a second signal may come meanwhile
        (self._hurry if asked else self._told).set()

    def _drain(self) -> None:
        self._told.wait()
        engine = self._engine
        engine.stop_accepting()
        if engine.is_idle:
            logger.info("shutting down: no request is left")
        else:
            left = f"{engine.num_running} running and {engine.num_waiting} waiting requests"
            logger.info("shutting down: %s have %g s to finish", left, self._drain_seconds)
        deadline = time.monotonic() + self._drain_seconds
        while not engine.is_idle and time.monotonic() < deadline and not self._hurry.wait(POLL_SECONDS):
            pass
        if not engine.is_idle:
            logger.warning("cancelling %d running and %d waiting requests", engine.num_running, engine.num_waiting)
        engine.stop()
        self.should_exit = True
