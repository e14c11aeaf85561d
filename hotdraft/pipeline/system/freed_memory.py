"""Giving memory back to the system: what was freed, and what a file still has."""

import ctypes
import mmap
import sys
from collections.abc import Iterable

from torch import Tensor

PAGE_OUT = 21
"""MADV_PAGEOUT of Linux 5.4 and later, which Python's mmap does not name."""


def give_back() -> None:
    """Free what glibc holds on to: after models were loaded that is hundreds of MB, after each job hundreds more,
    as what one leaves lies between what stays. Does nothing elsewhere."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def page_out(tensors: Iterable[Tensor]) -> None:
    """Free the memory of what is mapped from a file, from which it comes again when it is read.

    Other tensors stay, or go to the swap space where there is one. Does nothing where the system cannot.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = mmap.PAGESIZE
    for tensor in tensors:
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        start, end = -(-start // page) * page, end // page * page
        if end > start:
            advise(start, end - start, PAGE_OUT)
