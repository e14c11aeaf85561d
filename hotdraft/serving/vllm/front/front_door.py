"""In front of vLLM's application: our own pages below `/hotdraft`, and what clients say of their traffic.

vLLM hands `vllm_xargs` of a request to its workers. The tag of the traffic, whether it may be kept and a digest of
who asks travel there, from where hotdraft's own server reads them: `metadata.domain` or `X-Hotdraft-Domain`,
`store`, and the API key or address.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotdraft.serving.vllm.worker.requests import CLIENT, DOMAIN, SALTED, STORE, says_no

OURS = "/hotdraft"
TAGGED = (
    "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/messages", "/v1/responses",
)  # fmt: skip
MAX_DOMAIN = 200


class FrontDoor:
    """An ASGI middleware around vLLM's application.

    `ours()` is the application below `/hotdraft`; `before_end` is awaited when the server ends.
    """

    def __init__(
        self,
        app: ASGIApp,
        ours: Callable[[], ASGIApp],
        client_identity: Callable[[Request], str],
        before_end: Callable[[], Awaitable[None]],
    ) -> None:
        self._app = app
        self._before_end = before_end
        self._ours = ours
        self._client_identity = client_identity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and path == OURS:  # what pages below it link to begins behind the slash
            await RedirectResponse(f"{OURS[1:]}/")(scope, receive, send)
        elif scope["type"] == "http" and path.startswith(f"{OURS}/"):
            rest = path.removeprefix(OURS)
            await self._ours()({**scope, "path": rest, "raw_path": rest.encode(), "root_path": ""}, receive, send)
        elif scope["type"] == "http" and scope["method"] == "POST" and path in TAGGED:
            await self._tagged(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, self._until_end(receive), send)
        else:
            await self._app(scope, receive, send)

    def _until_end(self, receive: Receive) -> Receive:
        async def told() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._before_end()
            return message

        return told

    async def _tagged(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = []
        while True:
            message = await receive()
            if message["type"] != "http.request":  # the client is gone
                return
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        headers = Headers(scope=scope)
        body = tagged(b"".join(parts), headers.get("x-hotdraft-domain"), self._client_identity(Request(scope)))
        scope = {**scope, "headers": list(scope["headers"])}
        MutableHeaders(scope=scope)["content-length"] = str(len(body))
        told = False

        async def once() -> Message:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, once, send)


def tagged(body: bytes, domain_header: str | None, client: str) -> bytes:
    """A request's JSON `body` with what workers are to know of it; as it is where that is no object."""
    try:
        told: Any = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(told, dict) or not isinstance(told.get("vllm_xargs") or {}, dict):
        return body
    metadata = told.get("metadata")
    domain = (metadata.get("domain") if isinstance(metadata, dict) else None) or domain_header
    extra = {**(told.get("vllm_xargs") or {}), CLIENT: client}
    if isinstance(domain, str):
        extra[DOMAIN] = domain[:MAX_DOMAIN]
    if says_no(told.get("store")):
        extra[STORE] = 0
    if told.get("cache_salt"):
        extra[SALTED] = 1
    return json.dumps({**told, "vllm_xargs": extra}).encode()
