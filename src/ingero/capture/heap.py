"""Keeps the memory of an agent that runs for weeks from following its largest moment."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 256 << 10


def return_large_blocks() -> None:
    """From now on large blocks go back to the system when they are freed.

    Of itself glibc keeps what was freed once for the next block of that size, up to 32 MB each, and what lies between
    small ones stays. Does nothing with another C library.
    """
    if mallopt := _of_c_library("mallopt"):
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


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
