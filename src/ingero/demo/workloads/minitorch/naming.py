"""Kernel names of threads and the fate of orphans: two prctl(2) calls that Python does not offer."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def name_this_thread(name: str) -> None:
    """Set the calling thread's comm (at most 15 bytes are kept)."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def die_with_parent() -> None:
    """End this process when the thread that forked it ends, even by SIGKILL."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
