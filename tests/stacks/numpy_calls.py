"""Traced calls from Python that numpy's and the C library's code calls back, on the main thread and on others.

usage: numpy_calls.py LIBCUDART CALLS. The interpreter's own table of members is changed first, as a debug build's would
be: its frames are refused, and a stack is native from the call to the first function of the thread.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from itertools import cycle

import numpy as np

library = ctypes.CDLL(sys.argv[1])
library.cudaMemset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_MEMBERS_AT, _MEMBER_BYTES, _OFFSET_AT = 240, 40, 16  # PyTypeObject.tp_members, PyMemberDef


def hide_frames() -> None:
    """Makes this interpreter one that is refused."""
    member = ctypes.c_void_p.from_address(id(type(hide_frames.__code__)) + _MEMBERS_AT).value or 0
    while ctypes.c_char_p.from_address(member).value != b"co_filename":
        member += _MEMBER_BYTES
    ctypes.CDLL(None).mprotect(ctypes.c_void_p(member & -4096), 8192, 3)
    ctypes.c_ssize_t.from_address(member + _OFFSET_AT).value += 16


def call(*_: object) -> int:
    """One traced call."""
    library.cudaMemset(None, 0, 4096)
    return 0


def _nested(depth: int, function: functools.partial[object]) -> object:
    return _nested(depth - 1, function) if depth else function()


def _sorted_by_libc() -> None:
    values = (ctypes.c_int * 3)(3, 1, 2)
    ctypes.CDLL(None).qsort(values, 3, ctypes.sizeof(ctypes.c_int), CALLBACK(call))


def ways() -> list[functools.partial[object]]:
    """Each makes at least one call, through other C code."""
    numbers = np.arange(3.0)
    return [
        functools.partial(np.vectorize(call, otypes=[int]), numbers),
        functools.partial(np.frompyfunc(call, 1, 1), numbers),
        functools.partial(np.apply_along_axis, call, 0, numbers),
        functools.partial(np.fromfunction, call, (3,)),
        functools.partial(np.fromiter, map(call, range(1)), float),
        functools.partial(sorted, [3, 1, 2], key=call),
        functools.partial(functools.reduce, call, [1, 2, 3]),
        functools.partial(_sorted_by_libc),
    ]


def run(calls: int) -> None:
    """Goes through all ways, at depths from 0 to 30."""
    depth = cycle(range(0, 31, 3))
    for _, way in zip(range(calls), cycle(ways()), strict=False):
        _nested(next(depth), way)


def main() -> None:
    """Half on the main thread, half on two others."""
    calls = int(sys.argv[2])
    threads = [threading.Thread(target=run, args=(calls // 4,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    run(calls // 2)
    for thread in threads:
        thread.join()


if sys.argv[3:] == ["native"]:
    hide_frames()
print("ready", flush=True)
sys.stdin.readline()
main()
print("done", flush=True)
sys.stdin.readline()
