"""Torch work beside the engine, in a thread that yields to it and ends with its work.

Every thread that computes in parallel keeps OpenMP workers of its own for as long as it lives. Once
there are more of them than cores, libgomp's workers sleep between operations instead of waiting
awake, and each of a round's hundreds of operations has to wake them: rounds become half as slow again.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

NICENESS = 4
"""On Linux a thread has its own, and its OpenMP workers inherit it."""


def aside(work: Callable[[], T], *, yields: bool = True) -> T:
    """The result of `work`, computed in a thread of its own; what it raises is raised.

    Not where threads that serve later are begun in it, with `yields`: they would yield as well, for good.
    """
    with ThreadPoolExecutor(1, initializer=_yield_to_others if yields else None) as executor:
        return executor.submit(work).result()


def _yield_to_others() -> None:
    if sys.platform == "linux":  # elsewhere it would be the whole process's
        os.nice(NICENESS)
