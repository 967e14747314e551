"""Returns freed memory to the system, so that an agent that runs for weeks does not stay at its peak."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BYTES = 128 << 10  # what glibc begins with


def return_large_blocks() -> None:
    """Makes malloc return large blocks to the system when they are freed.

    Of itself glibc keeps what was freed once for the next block of that size, up to 32 MB each, and what lies between
    small ones stays; of the free end of a heap it keeps twice as much, by what was freed before this, too. Does nothing
    with another C library.
    """
    if mallopt := _of_c_library("mallopt"):
        for threshold in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(threshold, _LARGE_BYTES)


def return_freed() -> None:
    """Returns the free pages between small blocks, which glibc keeps: 1 ms for 10 MB.

    Does nothing with another C library.
    """
    if trim := _of_c_library("malloc_trim"):
        trim(0)


@cache
def _of_c_library(name: str) -> Any:
    """A function of this process's C library; None if it has none of that name."""
    return getattr(ctypes.CDLL(None), name, None)
