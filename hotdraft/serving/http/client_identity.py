"""Who asks, as far as clients are told apart: by key where keys are asked for, else by address."""

import hashlib
from ipaddress import IPv6Address, ip_address

from starlette.requests import Request

from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.pipeline.config.settings import HotdraftConfig


def asks_for_keys(config: ServerConfig) -> bool:
    """Whether clients are told apart by key."""
    return bool(config.api_keys) or config.api_key_file is not None


def are_apart(config: HotdraftConfig) -> bool:
    """Whether nothing may be guessed from answers to another client."""
    return asks_for_keys(config.server) and not config.engine.share_answers


def answer_scope(request: Request, config: HotdraftConfig, salt: str | None) -> str:
    """See `GenerationRequest.scope`: all who may come without a key are one owner."""
    owner = client_identity(request, config.server) if are_apart(config) else ""
    return owner if salt is None else f"{owner}:{hashlib.sha256(salt.encode()).hexdigest()[:16]}"


def client_identity(request: Request, config: ServerConfig) -> str:
    """A digest of its key, which has been checked, or its address; of an IPv6 one the network of /64."""
    if asks_for_keys(config):
        key = request.headers.get("authorization", "").partition(" ")[2].strip()
        return hashlib.sha256(key.encode("latin-1")).hexdigest()[:16]
    host = request.client.host if request.client is not None else ""
    try:
        address = ip_address(host)
    except ValueError:  # a Unix socket has none
        return host
    return address.exploded[:19] if isinstance(address, IPv6Address) and not address.ipv4_mapped else host
