"""Browsers on the network of this server: what a page of another site may make them ask, which is nothing.

A page may send a GET or a plain POST anywhere, though it does not see the answer; one whose site's name leads to
this server's address (DNS rebinding) sees that too. The first is told by what only a program or our own page sends,
the second by the name that the browser asked for.
"""

import ipaddress
import socket

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.serving.http.errors import ApiError

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
GUARDED = ("/v1/", "/admin/")
DEFAULT_PORTS = (":80", ":443")


class AllowedHosts:
    """Refuses requests that call this server by a name it does not have.

    It has localhost and what is below it, every IP address (no name leads there), its `host`, the machine's own
    name, and `allowed_hosts`. A request without `Host`, as HTTP/1.0 allows, is no browser's.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        own = ["localhost", "*.localhost", config.host, socket.gethostname()]
        self._names = [name.lower().rstrip(".") for name in (*own, *config.allowed_hosts) if name]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (host := Headers(scope=scope).get("host")):
            name = _name_of(host)
            if not (_is_address(name) or any(_fits(name, allowed) for allowed in self._names)):
                message = f"This server is not called {name!r}; if it should be, add that to server.allowed_hosts."
                await ApiError(403, message, code="unknown_host").response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


class OwnPagesOnly:
    """Refuses what changes or costs something where a page of another site had a browser ask for it.

    Such a page can forge neither `Origin` nor `Sec-Fetch-Site`, and without this server's consent, which it never
    gives, it sends neither a JSON content type nor `Authorization`: one of these two is asked for.
    An `Origin` is our own if it is the `Host`, or, behind a proxy that tells another one, among `allowed_hosts`.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._names = [name.lower() for name in config.allowed_hosts if name != "*"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["method"] not in SAFE_METHODS
            and scope["path"].startswith(GUARDED)
            and (error := self._refusal(Headers(scope=scope)))
        ):
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        origin = headers.get("origin")
        is_own = origin is None or self._is_own(origin, headers.get("host", ""))
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or not is_own:
            return ApiError(403, "Pages of other sites may ask for nothing here.", code="foreign_origin")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and "authorization" not in headers:
            return ApiError(415, "Send the header Content-Type: application/json.", code="content_type")
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        at = _without_default_port(origin.partition("://")[2].lower())
        return bool(at) and (
            at == _without_default_port(host.lower()) or any(_fits(at, allowed) for allowed in self._names)
        )


def _name_of(host: str) -> str:
    """`Host` without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _without_default_port(netloc: str) -> str:
    return next((netloc.removesuffix(port) for port in DEFAULT_PORTS if netloc.endswith(port)), netloc)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _fits(name: str, allowed: str) -> bool:
    """Whether a name is the allowed one, or below it where that begins with `*.`; `*` allows all."""
    return allowed == "*" or name == allowed or (allowed.startswith("*.") and name.endswith(allowed[1:]))
