"""Times as tables show them."""

from datetime import datetime

MINUTES = "%m-%d %H:%M"


def local_time(seconds: float, style: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Unix time in this machine's time zone; as a number where there is no such time."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime(style)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
