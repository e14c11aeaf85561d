"""Connections that ask for nothing, or take for ever: how long each may take, and which goes where there are many.

uvicorn waits for headers and bodies as long as a client likes; and where the process may open no more files,
asyncio tries to accept again at once, and logs it, without end.
"""

import asyncio
import logging
import os
import resource
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.serving.http.errors import ApiError
from hotdraft.serving.messages.events import CloseReason

logger = logging.getLogger(__name__)

ACCEPTS_A_TURN = 16
"""Connections accepted in one turn of the event loop; three turns later those above the limit are closed."""
BODIES_AT_ONCE = 16
"""Of the largest size, that unfinished requests may hold in memory together."""
LINGER_SECONDS = 1.0
"""That a client has to read why it is left: closing at once would take back what it has not read yet."""
SPARE_FILES = 4 * ACCEPTS_A_TURN + 64
"""Open files beyond connections and what is open at the start: those being closed, and shards, stores, jobs."""

Phase = Literal["idle", "headers", "body"]
"""What a connection waits for: the first byte of a request after another one, or the rest of one."""


class Connections:
    """What a server's connections share: limit, deadlines, who waits for a request, and who was closed and why."""

    def __init__(self, config: ServerConfig, limit: int) -> None:
        self.limit = limit
        self.seconds: dict[Phase, float] = {"headers": config.header_seconds, "body": config.body_seconds}
        self.max_bytes = BODIES_AT_ONCE * config.max_body_bytes
        self.bytes = 0
        """Of bodies that are not complete."""
        self.open = 0
        self.closed: Counter[CloseReason] = Counter()
        self.waiting: dict[Connection, None] = {}
        """Connections whose request is not complete, those that have waited longest first."""
        self.refused: dict[Connection, None] = {}
        """Those above the limit, which are being told so."""

    @property
    def protocol(self) -> Callable[..., "Connection"]:
        """For uvicorn's `http`."""
        return partial(Connection, shared=self)

    def admit(self) -> bool:
        """Whether there is room for one more, made where needed."""
        if self.open < self.limit:
            self.open += 1
            return True
        oldest = next(iter(self.waiting), None)
        self.count("full" if oldest is None else "crowded")
        if oldest is None:
            return False
        oldest.make_room()
        self.open += 1
        return True

    def hold(self, number: int) -> None:
        """Count bytes of unfinished bodies; those that have been under way for longest go if they are too many."""
        self.bytes += number
        while self.bytes > self.max_bytes:
            oldest = next(connection for connection in self.waiting if connection.bytes)
            self.count("crowded")
            oldest.make_room()

    def refuse(self, newcomer: "Connection") -> None:
        if len(self.refused) == ACCEPTS_A_TURN:
            oldest = next(iter(self.refused))
            del self.refused[oldest]  # now: of its end it hears a turn later, when more have come
            oldest.transport.abort()
        self.refused[newcomer] = None
        newcomer.end(503, "All connections are in use.")

    def count(self, reason: CloseReason) -> None:
        self.closed[reason] += 1
        if reason in ("crowded", "full"):
            logger.warning("a connection was closed: %d are open, with %d bytes on the way", self.open, self.bytes)


class Connection(H11Protocol):
    """uvicorn's, with a deadline for whatever it waits for."""

    def __init__(self, *arguments: Any, shared: Connections, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._shared = shared
        self._is_counted = False
        self._is_ended = False
        """Whether the client was told that this is the end; what it says is not heard any more."""
        self._phase: Phase | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        """Runs while the client takes nothing of its answer."""
        self.bytes = 0
        """Received of a body that is not complete."""
        self._answers_last = False
        """Whether what is answered now is the last: the server ends."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_counted = self._shared.admit()
        if self._is_counted:
            self._expect("headers")
        else:
            self._shared.refuse(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._release()

    def data_received(self, data: bytes) -> None:
        if self._is_ended:
            return
        super().data_received(data)
        self._look()
        if self._phase == "body":
            self.bytes += len(data)
            self._shared.hold(len(data))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()
        if self._answers_last:
            self.shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self._shared.seconds["body"], self._overdue, "answer")

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()

    def shutdown(self) -> None:
        """At the server's end. Closing a connection that is or gets idle would cut off the next request on it."""
        if self._is_ended or self.transport.is_closing():
            return
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not is_answering and self.transport.get_write_buffer_size():  # its client still reads the answer
            self.transport.close()
        elif not is_answering or (self._phase == "body" and self.conn.our_state is h11.SEND_RESPONSE):
            self._end_once(503, "The server is shutting down.")
        else:
            self._answers_last = True

    def send_400_response(self, msg: str) -> None:
        """Of what is no HTTP. uvicorn's raises where an answer came first, and has the next one raise."""
        self._end_once(400, msg)

    def end(self, status: int, message: str) -> None:
        """Say why, and leave when the client has left or had time to read it."""
        self.transport.write(_answer(status, message))
        self._leave()

    def _end_once(self, status: int, message: str) -> None:
        self._expect(None)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.end(status, message)
        else:  # it was answered before its body had come
            self._leave()

    def _leave(self) -> None:
        self._is_ended = True
        if self.cycle is not None:  # whatever it still says is not sent
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        with suppress(OSError):  # its client has left, which nobody has heard of yet
            self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def make_room(self) -> None:
        """Leave at once."""
        self._release()
        self.transport.abort()

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._expect("body")
        elif state is h11.IDLE:
            has_begun = self._phase == "headers" or bool(self.conn.trailing_data[0])
            self._expect("headers" if has_begun else "idle")
        else:
            self._expect(None)

    def _expect(self, phase: Phase | None) -> None:
        """Begin to wait for what is not waited for already: a byte now and then moves no deadline."""
        if phase == self._phase:
            return
        self._phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
        self._shared.waiting.pop(self, None)
        self._shared.bytes -= self.bytes
        self.bytes = 0
        if phase is None:
            return
        self._shared.waiting[self] = None
        if phase == "idle":  # uvicorn forgets its own timer where a body's end came after the answer to it
            self._deadline = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        else:
            self._deadline = self.loop.call_later(self._shared.seconds[phase], self._overdue, phase)

    def _overdue(self, reason: CloseReason) -> None:
        self._shared.count(reason)
        has_begun = self._phase == "body" or bool(self.conn.trailing_data[0])
        if reason != "answer" and has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.end(408, "The request took too long to arrive.")
        else:
            self.transport.abort()

    def _release(self) -> None:
        self._expect(None)
        self._shared.refused.pop(self, None)
        if self._stall is not None:
            self._stall.cancel()
        if self._is_counted:
            self._shared.open -= 1
            self._is_counted = False


def connection_limit(configured: int) -> int:
    """How many connections this process may hold: `configured`, or as many as its limit on open files has room for.

    The limit is raised where that is allowed. Raises `ConfigError` where it leaves no room at all.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    others = len(os.listdir("/dev/fd")) + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < configured + others:
        soft = configured + others if hard == resource.RLIM_INFINITY else min(configured + others, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = configured if soft == resource.RLIM_INFINITY else min(configured, soft - others)
    if room < 1:
        raise ConfigError(f"this process may open {soft} files, at least {others + 1} are needed: see `ulimit -n`")
    if room < configured:
        logger.warning("at most %d connections, not %d: this process may open %d files", room, configured, soft)
    return room


def _answer(status: int, message: str) -> bytes:
    """A whole response, for a connection on which no other is under way."""
    response = ApiError(status, message).response()
    headers = [f"{name}: {value}" for name, value in response.headers.items()]
    head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *headers, "connection: close", "", ""]
    return "\r\n".join(head).encode("latin-1") + bytes(response.body)
