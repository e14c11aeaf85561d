"""Times as tables show them."""

from datetime import datetime

MINUTES = "%m-%d %H:%M"


def local_time(seconds: float, style: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Unix time in this machine's time zone."""
    return datetime.fromtimestamp(seconds).astimezone().strftime(style)
