"""Who may ask, and how much at once: API and admin keys, the limit on a body's size."""

import asyncio
import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.serving.http.errors import ApiError

ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Hosts that are every address, and where these are asked on this machine."""
METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"})


def read_api_keys(config: ServerConfig) -> list[str]:
    """The keys of `api_keys` and of `api_key_file`, which has one a line; lines that begin with # are notes.

    Raises `ConfigError` for a file that cannot be read or has no key: nobody should serve openly by mistake.
    """
    keys = [key.get_secret_value() for key in config.api_keys]
    return keys + _keys_in(config.api_key_file, "server.api_key_file")


def read_admin_keys(config: ServerConfig) -> list[str]:
    """Likewise those of `admin_keys` and `admin_key_file`.

    Raises `ConfigError` as well where there are none, other machines reach /admin, and `open_admin` is not set.
    """
    keys = [key.get_secret_value() for key in config.admin_keys]
    keys += _keys_in(config.admin_key_file, "server.admin_key_file")
    if not (keys or config.open_admin or is_loopback(config.host)):
        raise ConfigError(
            f"other machines reach /admin at server.host {config.host}: set server.admin_keys or "
            "server.admin_key_file, or server.open_admin: true if that is how it should be"
        )
    return keys


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens at `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def local_url(host: str, port: int) -> str:
    """Where to ask on this machine what listens at `host`."""
    asked = ANY.get(host, host)
    return f"http://[{asked}]:{port}" if ":" in asked else f"http://{asked}:{port}"


def _keys_in(path: Path | None, name: str) -> list[str]:
    if path is None:
        return []
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{name}: {path} has no key; write one a line")
    return keys


class KnownMethods:
    """An ASGI middleware that refuses methods that HTTP does not name: each would be a label of metrics."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in METHODS:
            error = ApiError(405, "This method is not known to the server.", code="unknown_method")
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class ApiKeyGuard:
    """Lets a request to a guarded path pass only with `Authorization: Bearer` and a key for it.

    /v1 asks for a key where there are API keys, /admin where there are any: one of the admin keys, which open /v1
    as well, or where there are none of those an API key. Every key is compared, in constant time, whichever fits.
    """

    def __init__(self, app: ASGIApp, api_keys: Sequence[str], admin_keys: Sequence[str]) -> None:
        self._app = app
        api, admin = ([_digest(key.encode()) for key in keys] for keys in (api_keys, admin_keys))
        self._digests = {"/v1/": api and api + admin, "/admin/": admin or api}
        """Keys by the beginning of the paths they open; none: everybody may."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            beginning = next((each for each in self._digests if scope["path"].startswith(each)), "")
            if known := self._digests.get(beginning):
                scheme, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
                if scheme.lower() != "bearer" or not _is_among(given.strip(), known):
                    await _incorrect_key(given=bool(given)).response()(scope, receive, send)
                    return
        await self._app(scope, receive, send)


LARGE_BYTES = 100_000
LARGE_BYTES_A_SECOND = 10_000_000
"""Of large bodies handed on: reading a megabyte of JSON keeps event loop and decoder waiting for some 20 ms."""
LONGEST_WAIT_SECONDS = 5.0


class BodyLimit:
    """Answers 413 to a body of more than `max_bytes`, whether its length is declared or found out.

    Large ones are handed on at a bounded rate, and get 503 where too many wait for that, so that small ones go on.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._message = f"The body is larger than {max_bytes} bytes."
        self._next_large = 0.0
        """When the next large body may be handed on, in the event loop's time."""

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
            is_whole = message["type"] == "http.request" and not message.get("more_body", False)
            if is_whole and received > LARGE_BYTES:
                await self._turn(received)
            return message

        await self._app(scope, limited, send)

    async def _turn(self, number: int) -> None:
        now = asyncio.get_running_loop().time()
        wait = max(self._next_large - now, 0)
        if wait > LONGEST_WAIT_SECONDS:
            raise HTTPException(503, "Too many large bodies wait to be read.", headers={"Retry-After": "5"})
        self._next_large = now + wait + number / LARGE_BYTES_A_SECOND
        await asyncio.sleep(wait)


def _is_among(key: str, digests: Sequence[bytes]) -> bool:
    digest = _digest(key.encode("latin-1"))
    return sum(hmac.compare_digest(digest, known) for known in digests) > 0


def _digest(key: bytes) -> bytes:
    """Of one length, whatever the key's: a comparison tells nothing of it."""
    return hashlib.sha256(key).digest()


def _incorrect_key(*, given: bool) -> ApiError:
    message = (
        "Incorrect API key provided." if given else "You didn't provide an API key: Authorization: Bearer KEY."
    )
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
