"""Resident memory of this process, in MB of 10^6 bytes."""

import os
import resource
import sys
from pathlib import Path


def rss_mb() -> float:
    """Resident now; where there is no /proc, the highest so far."""
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        return rss_peak_mb()
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def rss_peak_mb() -> float:
    """The highest so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes there and KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
