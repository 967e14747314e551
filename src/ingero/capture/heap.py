"""Keeps the memory of an agent that runs for weeks from following its largest moment."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 256 << 10


def return_large_blocks() -> None:
    """From now on large blocks go back to the system when they are freed.

    Of itself glibc keeps what was freed once for the next block of that size, up to 32 MB each, and what lies between
    small ones stays. Does nothing with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
