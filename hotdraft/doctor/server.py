"""Where the server listens: whether the port is free, or whose it is, and who may ask."""

import errno
import socket
from collections.abc import Iterator
from typing import Any

import httpx

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.serving.http.access import ANY, is_loopback, local_url, read_admin_keys, read_api_keys
from hotdraft.serving.http.connections import connection_limit

ANSWER_SECONDS = 3.0
SURVIVED = {
    "swap_waits": ("adapters", "swaps no version in", "its log says more, as its engines' do"),
    "adapter_registry": ("adapters", "follows no promotion or rollback", "mend the MLflow store"),
    "recording": ("recorder", "has lost what it answered", "mend the replay store: it goes on by itself"),
    "run_dir": (
        "run_dir",
        "works in a folder that is not there any more",
        "move it back, or start the server anew",
    ),
}
"""What a server tells of itself that it serves on in spite of: what that is about, what it does, how to mend it."""


def examine_port(config: HotdraftConfig, *, to_serve: bool = False) -> Iterator[Finding]:
    """Whether the port is free. A hotdraft that listens there is well, unless one is `to_serve` there."""
    host, port = config.server.host, config.server.port
    elsewhere = "serve elsewhere: `hotdraft serve --port N`, or HOTDRAFT_SERVER__PORT=N"
    if port == 0:
        yield ok("port", f"any that is free at {host}")
        return
    try:
        _bind(host, port)
    except PermissionError:
        yield problem("port", f"this user may not listen at {host}:{port}", elsewhere)
    except (socket.gaierror, UnicodeError) as error:  # the latter of a part that is empty or longer than names have
        mend = "set `server: {host: …}` to an address of this machine"
        why = error.strerror if isinstance(error, OSError) else error
        yield problem("port", f"{host!r} is no address: {why}", mend)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            yield from _tenant(ANY.get(host, host), port, elsewhere, to_serve)
        else:
            mend = "set `server: {host: …}` to an address of this machine, or 0.0.0.0 for all"
            yield problem("port", f"{host}:{port}: {error.strerror}", mend)
    else:
        yield ok("port", f"{host}:{port} is free")


def _bind(host: str, port: int) -> None:
    [(family, kind, _, _, address), *_] = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        listener.bind(address)


def _tenant(host: str, port: int, mend: str, to_serve: bool) -> Iterator[Finding]:
    url = local_url(host, port)
    program, says, health = "hotdraft", _ask(f"{url}/version"), "health"
    if "draft_version" not in says:  # vLLM's own, maybe with our pages beside it
        program, health = "hotdraft over vLLM", "hotdraft/status"
        says |= _ask(f"{url}/{health}")
    if "draft_version" not in says:
        yield problem("port", f"another program listens at {host}:{port}", f"{mend}; `ss -ltnp` tells which it is")
        return
    serves = f"{program} {says.get('version')} serves at {url}, with draft version {says['draft_version']}"
    if to_serve:
        yield problem("port", serves, mend)
        return
    yield ok("port", serves)
    told = _ask(f"{url}/{health}")
    for name, (about, does, mend) in SURVIVED.items():
        if why := told.get(name):
            yield warning(about, f"{url} {does}: {why}", mend)
    unusable = told.get("unusable_adapters")
    for version, why in unusable.items() if isinstance(unusable, dict) else ():
        mend = (
            "its log says more; mend the cause, or promote a version that it can serve: `hotdraft adapters promote`"
        )
        yield warning("adapters", f"{url} cannot serve version {version}, and serves on without it: {why}", mend)


def _ask(url: str) -> dict[str, Any]:
    """The JSON object at `url`; empty if there is none."""
    try:
        answer = httpx.get(url, timeout=ANSWER_SECONDS, trust_env=False)  # no proxy: it is this machine's
        says = answer.json() if answer.is_success else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return says if isinstance(says, dict) else {}


def examine_files(config: HotdraftConfig) -> Iterator[Finding]:
    try:
        room = connection_limit(config.server.max_connections)
    except ConfigError as error:
        mend = "raise it where the server is started: `ulimit -n 4096`, LimitNOFILE of systemd, --ulimit of Docker"
        yield problem("open files", str(error), mend)
    else:
        yield ok("open files", f"room for {room} connections")


def examine_access(config: HotdraftConfig) -> Iterator[Finding]:
    host = config.server.host
    mend = "set HOTDRAFT_SERVER__API_KEYS, or `server: {api_key_file: FILE}` with one key a line"
    try:
        keys = read_api_keys(config.server)
    except ConfigError as error:
        yield problem("API keys", str(error), mend)
    else:
        if keys:
            yield ok("API keys", f"{len(keys)}, one of which every request needs")
        elif is_loopback(host):
            yield ok("API keys", f"none: {host} is open to everybody on this machine, and to no other")
        else:
            yield warning("API keys", f"none: open to everybody who reaches {host}", mend)
    yield from _examine_admin(config)


def _examine_admin(config: HotdraftConfig) -> Iterator[Finding]:
    mend = "set HOTDRAFT_SERVER__ADMIN_KEYS, or `server: {admin_key_file: FILE}` with one key a line"
    try:
        keys = read_admin_keys(config.server)
    except ConfigError as error:
        yield problem("admin keys", str(error), mend)
        return
    if keys:
        yield ok("admin keys", f"{len(keys)}, one of which /admin needs")
    elif is_loopback(config.server.host):
        yield ok("admin keys", "none: /admin asks for what /v1 asks for")
    else:
        yield warning("admin keys", "none, as server.open_admin says: /admin asks for what /v1 asks for", mend)
