"""Giving memory that was freed back to the system."""

import ctypes


def give_back() -> None:
    """Free what glibc holds on to: after models were loaded that is hundreds of MB. Does nothing elsewhere."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
