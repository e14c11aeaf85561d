"""A log's lines, and its end as a terminal would show it."""

import re
from pathlib import Path

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_tail(log: Path, lines: int = 15) -> str:
    """The last `lines` lines that a log shows, without blank ones, colours and overwritten progress bars."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 8192))
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.read().decode(errors="replace"))
    shown = [line.split("\r")[-1].rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return "\n".join([line for line in shown if line][-lines:])
