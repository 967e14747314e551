"""A program whose memory goes wrong while its calls are recorded; each way is named on the command line.

usage: broken.py LIBCUDART WAY [LIBRARY]. Ways: frames-vanish (another thread takes a frame away and puts it back),
calls (until it is killed), code-is-none (what should be a code object is none), relay (calls by way of LIBRARY).
The memory of the interpreter is written to, so it takes Python 3.11.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time

library = ctypes.CDLL(sys.argv[1])
library.cudaMemset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_PAGE = 4096
_CALLS = 3000


def call(number: int) -> None:
    """One traced call."""
    library.cudaMemset(None, 0, number)


def _calls(count: int = _CALLS) -> None:
    for number in range(count):
        call(number)
        time.sleep(0.0003)


def _current_frame_word() -> ctypes.c_uint64:
    """Where the interpreter notes the outer frame of this function's: PyFrameObject.f_frame->previous, Python 3.11."""
    frame = sys._getframe(1)
    inner = ctypes.c_uint64.from_address(id(frame) + 24).value
    return ctypes.c_uint64.from_address(inner + 48)


def frames_vanish() -> None:
    """The frame list leads to memory that comes and goes while the calls return."""
    place = libc.mmap(None, _PAGE, 3, 0x22, -1, 0)
    word = _current_frame_word()
    kept, stop = word.value, threading.Event()
    ctypes.memmove(place, kept, 80)

    def flicker() -> None:
        while not stop.is_set():
            libc.mprotect(place, _PAGE, 0)
            libc.mprotect(place, _PAGE, 3)

    thread = threading.Thread(target=flicker)
    thread.start()
    for number in range(_CALLS // 3):
        word.value = place
        library.cudaMemset(None, 0, number)
        word.value = kept
        time.sleep(0.0003)
    stop.set()
    thread.join()


def code_is_none() -> None:
    """A frame whose code object is some other object."""
    place = libc.mmap(None, _PAGE, 3, 0x22, -1, 0)
    word = _current_frame_word()
    kept = word.value
    ctypes.memmove(place, kept, 80)
    ctypes.c_uint64.from_address(place + 32).value = id(sys)
    for number in range(100):
        word.value = place
        library.cudaMemset(None, 0, number)
        word.value = kept


def by_relay() -> None:
    """A function of another library makes the call."""
    for number in range(100):
        relay(ctypes.cast(library.cudaMemset, ctypes.c_void_p), None, 0, number)


if sys.argv[3:]:
    relay = ctypes.CDLL(sys.argv[3]).relay
    relay.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
_WAYS = {"frames-vanish": frames_vanish, "calls": _calls, "code-is-none": code_is_none, "relay": by_relay}
print("ready", flush=True)
sys.stdin.readline()
_WAYS[sys.argv[2]]()
print("done", flush=True)
sys.stdin.readline()
