"""Who may ask, and how much at once: API keys, no pages of other sites, the limit on a body's size."""

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline.config import ConfigError, ServerConfig
from serving.errors import ApiError

GUARDED = ("/v1/", "/admin/")
"""Paths that need a key once there is one; probes, metrics and the pages themselves do not."""


def read_api_keys(config: ServerConfig) -> list[str]:
    """The keys of `api_keys` and of `api_key_file`, which has one a line; lines that begin with # are notes.

    Raises `ConfigError` for a file that cannot be read or has no key: nobody should serve openly by mistake.
    """
    keys = [key.get_secret_value() for key in config.api_keys]
    if config.api_key_file is not None:
        keys += _keys_in(config.api_key_file)
    return keys


def _keys_in(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"server.api_key_file cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"server.api_key_file: {path} has no key; write one a line")
    return keys


class ApiKeyGuard:
    """Lets a request to a guarded path pass only with `Authorization: Bearer` and one of the keys.

    Every key is compared, in constant time, whichever fits.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GUARDED):
            scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._knows(given.strip()):
                await _incorrect_key(given=bool(given)).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _knows(self, key: str) -> bool:
        digest = _digest(key.encode("latin-1"))
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0


class OwnPagesOnly:
    """Refuses changes under /admin that a page of another site asks a browser for, which may reach this port."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/admin/") and scope["method"] != "GET":
            asked_from = Headers(scope=scope).get("sec-fetch-site", "none")  # which no page can forge
            if asked_from not in ("none", "same-origin"):
                await ApiError(403, "Pages of other sites may change nothing here.").response()(
                    scope, receive, send
                )
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """Answers 413 to a body of more than `max_bytes`, whether its length is declared or found out."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._message = f"The body is larger than {max_bytes} bytes."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            await ApiError(413, self._message).response()(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, self._message)  # the only error that FastAPI lets through from here
            return message

        await self._app(scope, limited, send)


def _digest(key: bytes) -> bytes:
    """Of one length, whatever the key's: a comparison tells nothing of it."""
    return hashlib.sha256(key).digest()


def _incorrect_key(*, given: bool) -> ApiError:
    message = (
        "Incorrect API key provided." if given else "You didn't provide an API key: Authorization: Bearer KEY."
    )
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
