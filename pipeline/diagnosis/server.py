"""Where the server listens: whether the port is free, or whose it is, and who may ask."""

import errno
import ipaddress
import socket
from collections.abc import Iterator

import httpx

from pipeline.config import ConfigError, HotdraftConfig
from pipeline.diagnosis.finding import Finding, ok, problem, warning
from serving.access import read_api_keys

ANSWER_SECONDS = 3.0
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Where to ask a server that listens at every address."""


def examine_port(config: HotdraftConfig) -> Iterator[Finding]:
    host, port = config.server.host, config.server.port
    elsewhere = "serve elsewhere: `hotdraft serve --port N`, or HOTDRAFT_SERVER__PORT=N"
    if port == 0:
        yield ok("port", f"any that is free at {host}")
        return
    try:
        _bind(host, port)
    except PermissionError:
        yield problem("port", f"this user may not listen at {host}:{port}", elsewhere)
    except socket.gaierror as error:
        mend = "set `server: {host: …}` to an address of this machine"
        yield problem("port", f"{host!r} is no address: {error.strerror}", mend)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            yield _tenant(ANY.get(host, host), port, elsewhere)
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


def _tenant(host: str, port: int, mend: str) -> Finding:
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        answer = httpx.get(f"{url}/version", timeout=ANSWER_SECONDS)
        says = answer.json() if answer.is_success else {}
    except (httpx.HTTPError, ValueError):
        says = {}
    if isinstance(says, dict) and "draft_version" in says:
        running = f"hotdraft {says.get('version')} serves at {url}, with draft version {says['draft_version']}"
        return ok("port", running)
    return problem("port", f"another program listens at {host}:{port}", f"{mend}; `ss -ltnp` tells which it is")


def examine_access(config: HotdraftConfig) -> Iterator[Finding]:
    mend = "set HOTDRAFT_SERVER__API_KEYS, or `server: {api_key_file: FILE}` with one key a line"
    try:
        keys = read_api_keys(config.server)
    except ConfigError as error:
        yield problem("API keys", str(error), mend)
        return
    if keys:
        yield ok("API keys", f"{len(keys)}, one of which every request needs")
    elif _is_loopback(config.server.host):
        yield ok("API keys", f"none: {config.server.host} is open to everybody on this machine, and to no other")
    else:
        yield warning("API keys", f"none: open to everybody who reaches {config.server.host}", mend)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
