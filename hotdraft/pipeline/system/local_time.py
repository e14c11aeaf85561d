"""Times as they may stand in files, and as tables show them."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

Seconds = Annotated[float, Field(ge=0, lt=2**33)]
"""Unix time, before the year 2243."""

MINUTES = "%m-%d %H:%M"


def local_time(seconds: float, style: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Unix time in this machine's time zone; as a number where there is no such time."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime(style)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
