"""The server's log: lines for people or JSON for machines, each with the id of the request it belongs to."""

import logging
import time
from collections import Counter
from typing import Literal

from asgi_correlation_id import CorrelationIdFilter
from pythonjsonlogger.json import JsonFormatter

PROBES = ("/health", "/ready", "/metrics")
_TEXT = "%(asctime)s %(levelname)s %(name)s: [%(correlation_id)s] %(message)s"
_JSON = "%(asctime)s %(levelname)s %(name)s %(correlation_id)s %(message)s"
_FIELDS = {"asctime": "time", "levelname": "level", "name": "logger", "correlation_id": "request_id"}


class AccessFields(logging.Filter):
    """Gives uvicorn's access lines fields of their own, and leaves out those of successful probes."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, path, _, status = record.args
            vars(record).update(client=client, method=method, path=path, status=status)
            return not (str(path).startswith(PROBES) and status == 200)
        return True


class Throttle(logging.Filter):
    """Lets `burst` records of one message pass in `seconds`; what a client can cause at will fills no disk."""

    def __init__(self, burst: int = 5, seconds: float = 10.0) -> None:
        super().__init__()
        self._burst, self._seconds = burst, seconds
        self._until = 0.0
        self._seen: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now >= self._until:
            self._until = now + self._seconds
            self._seen.clear()
        message = str(record.msg).partition("\n")[0]
        self._seen[message] += 1
        if self._seen[message] == self._burst:
            record.msg = f"{record.msg} (said {self._burst} times; no more of it for a while)"
        return self._seen[message] <= self._burst


def configure_logging(log_format: Literal["text", "json"], *, log_requests: bool = False) -> None:
    """Make every record of this process leave in `log_format`, to standard error.

    With `log_requests` so do lines of the HTTP requests, but for successful probes.
    """
    handler = logging.StreamHandler()
    handler.addFilter(CorrelationIdFilter(default_value="-"))
    handler.setFormatter(
        JsonFormatter(_JSON, rename_fields=_FIELDS) if log_format == "json" else logging.Formatter(_TEXT)
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO if log_requests else logging.WARNING)
    logging.getLogger("uvicorn.access").addFilter(AccessFields())
    for name in ("asyncio", "asgi_correlation_id", "hotdraft.serving.http.connections", "uvicorn.error"):
        logging.getLogger(name).addFilter(Throttle())
