"""Keeps the memory of an agent that runs for weeks from following its largest moment."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE_BYTES = 128 << 10  # what glibc begins with


def return_large_blocks() -> None:
    """From now on large blocks go back to the system when they are freed.

    Of itself glibc keeps what was freed once for the next block of that size, up to 32 MB each, and what lies between
    small ones stays; of the free end of a heap it keeps twice as much, by what was freed before this, too. Does nothing
    with another C library.
    """
    if mallopt := _of_c_library("mallopt"):
        for threshold in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(threshold, _LARGE_BYTES)


def return_freed() -> None:
    """Gives back the pages between small blocks, which glibc keeps: a millisecond for 10 MB of them.

    Does nothing with another C library.
    """
    if trim := _of_c_library("malloc_trim"):
        trim(0)


@cache
def _of_c_library(name: str) -> Any:
    """A function of the C library that this process runs with; None where it has none of that name."""
    return getattr(ctypes.CDLL(None), name, None)
