"""One request's output, carried from the engine's thread to the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from serving.engine import Engine
from serving.request import GenerationRequest, OutputDelta


class TokenStream:
    """Submits `request` on construction and yields its deltas, the last of which has a finish reason.

    The request is cancelled when `client` disconnects, whether or not anything is being sent to it,
    and when the iteration is abandoned. After a cancellation the engine's own last delta ends the
    iteration. Raises what `Engine.submit` raises. Must be made in a running event loop.
    """

    def __init__(self, engine: Engine, request: GenerationRequest, client: Request) -> None:
        self._engine = engine
        self._request_id = request.request_id
        self._loop = asyncio.get_running_loop()
        self._deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()
        self._finished = False
        engine.submit(request, self._on_delta)
        self._watcher = asyncio.create_task(self._cancel_on_disconnect(client))

    async def __aiter__(self) -> AsyncIterator[OutputDelta]:
        try:
            while not self._finished:
                delta = await self._deltas.get()
                self._finished = delta.finish_reason is not None
                yield delta
        finally:
            self._watcher.cancel()
            self._cancel()

    def _on_delta(self, delta: OutputDelta) -> None:
        # The loop may close while the engine finishes its last round; nobody reads this delta then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deltas.put_nowait, delta)

    async def _cancel_on_disconnect(self, client: Request) -> None:
        while (await client.receive())["type"] != "http.disconnect":
            pass
        self._cancel()

    def _cancel(self) -> None:
        if not self._finished:
            self._engine.cancel(self._request_id)
