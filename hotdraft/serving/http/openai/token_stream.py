"""What the engine says of a client's requests, carried from its thread to the event loop."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.http.errors import ApiError
from hotdraft.serving.messages.request import (
    COUNTED,
    FinishReason,
    GenerationRequest,
    OutputDelta,
    RequestStats,
    TokenLogprob,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLIENT_GONE = 499
"""nginx's status, which nobody reads but the log and the metrics."""


async def unless_gone(client: Request, work: Coroutine[None, None, T]) -> T:
    """What `work` comes to. Where `client` has disconnected by then it is cancelled; raises `ApiError` then."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(client))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() or not task.done():
            raise _client_gone()
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


class _Untold:
    """Deltas of a request that wait to be told as one."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    def add(self, delta: OutputDelta) -> None:
        self._last = delta
        self._texts.append(delta.text)
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs or ()
        self._prompt_logprobs = self._prompt_logprobs or delta.prompt_logprobs

    def as_one(self) -> OutputDelta:
        return replace(
            self._last,
            text="".join(self._texts),
            token_ids=tuple(self._token_ids),
            logprobs=None if self._last.logprobs is None else tuple(self._logprobs),
            prompt_logprobs=self._prompt_logprobs,
        )


class TokenStream:
    """Submits `requests` on construction and yields their deltas as they come, each with its request's index.

    What comes of a request before it is asked for joins what waits of it: of a client that reads slowly, or not at
    all, text is kept and no queue of pieces. The last delta of each has a finish reason. All are cancelled when
    `client` disconnects, whether or not anything is being sent to it, when the iteration is abandoned, and when one
    of them cannot be submitted; after a cancellation the engine's own last deltas end the iteration, or where
    `client` is gone an `ApiError`. Raises what `Engine.submit` raises. Must be made in a running event loop.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[GenerationRequest], client: Request, *, only_prompts: bool = False
    ) -> None:
        """`only_prompts` tells what is said of them, and none of the answers."""
        self._engine = engine
        self._only_prompts = only_prompts
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._untold: dict[tuple[int, bool], _Untold] = {}
        """By index; an end that is none of the answer's own comes after what was said before it."""
        self._news = asyncio.Event()
        self._unfinished: dict[int, str] = {}
        """Request ids by index."""
        self._request_id = requests[0].request_id
        self._is_read = True
        self._is_gone = False
        """Whether `client` is."""
        engine.check_room(requests[0].client, len(requests))  # before any is made: a refusal is to cost nobody
        with contextlib.ExitStack() as on_refusal:
            on_refusal.callback(self._cancel)
            for index, request in enumerate(requests):
                engine.submit(request, partial(self._on_delta, index))
                self._unfinished[index] = request.request_id
            on_refusal.pop_all()
        self._watcher = asyncio.create_task(self._cancel_on_disconnect(client))

    @property
    def is_finished(self) -> bool:
        """Whether every request has told its last delta."""
        return not self._unfinished

    async def __aiter__(self) -> AsyncIterator[tuple[int, OutputDelta]]:
        ended: list[tuple[FinishReason, RequestStats]] = []
        try:
            while self._unfinished:
                index, delta = await self._next()
                if delta.finish_reason is not None:
                    del self._unfinished[index]
                    ended.append((delta.finish_reason, delta.stats))
                if self._is_gone and delta.finish_reason == "cancelled":
                    raise _client_gone()
                yield index, _without_answer(delta) if self._only_prompts else delta
        finally:
            self._is_read = False
            self._watcher.cancel()
            self._cancel()
            if ended:
                _log(self._request_id, ended)
            if self._unfinished:
                logger.info("%s was abandoned by its client", self._request_id)

    def _on_delta(self, index: int, delta: OutputDelta) -> None:
        if not self._is_read:
            return
        key = index, delta.finish_reason in ("cancelled", "error")
        with self._lock:
            is_awaited = not self._untold
            self._untold.setdefault(key, _Untold()).add(delta)
        if is_awaited:
            # The loop may close while the engine finishes its last round; nobody reads this delta then.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._news.set)

    async def _next(self) -> tuple[int, OutputDelta]:
        while True:
            with self._lock:
                if self._untold:
                    key = next(iter(self._untold))
                    return key[0], self._untold.pop(key).as_one()
                self._news.clear()
            await self._news.wait()

    async def _cancel_on_disconnect(self, client: Request) -> None:
        await _disconnected(client)
        self._is_gone = True
        self._cancel()

    def _cancel(self) -> None:
        for request_id in self._unfinished.values():
            self._engine.cancel(request_id)


def _without_answer(delta: OutputDelta) -> OutputDelta:
    reason = "length" if delta.finish_reason == "stop" else delta.finish_reason
    stats = replace(delta.stats, completion_tokens=0)
    return replace(delta, text="", token_ids=(), logprobs=(), finish_reason=reason, stats=stats, stop_reason=None)


def _client_gone() -> ApiError:
    return ApiError(CLIENT_GONE, "The client is gone.")


async def _disconnected(client: Request) -> None:
    while (await client.receive())["type"] != "http.disconnect":
        pass


def _log(request_id: str, ended: Sequence[tuple[FinishReason, RequestStats]]) -> None:
    """One line for all answers to a request, whose number its client chooses: sums, and the longest times."""
    stats = [of_answer for _, of_answer in ended]
    reasons = ", ".join(dict.fromkeys(reason for reason, _ in ended))
    sums = {name: sum(getattr(one, name) for one in stats) for name in ("prompt_tokens", *COUNTED)}
    fields = {
        "finish_reason": reasons,
        "answers": len(ended),
        **sums,
        "draft_version": stats[-1].draft_version,
        "queued_seconds": round(max(one.queued_seconds for one in stats), 4),
        "total_seconds": round(max(one.total_seconds for one in stats), 4),
    }
    logger.info(
        "%s ended (%s): %s%d tokens after %d, %d of %d drafted ones accepted, %.3f s", request_id, reasons,
        f"{len(ended)} answers, " if len(ended) > 1 else "", sums["completion_tokens"], sums["prompt_tokens"],
        sums["accepted_tokens"], sums["drafted_tokens"], fields["total_seconds"],
        extra={"generation_id": request_id, **fields},
    )  # fmt: skip
