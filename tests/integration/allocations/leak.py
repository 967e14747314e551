"""Allocates at two lines: one gives back what it took, the other never does. Arguments: library, times.

Begins when it reads a line, and prints the bytes that each function holds at the end.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

runtime = ctypes.CDLL(sys.argv[1])
BYTES = 4096


def leaking() -> None:
    assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(BYTES)) == 0


def balanced() -> None:
    block = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(3 * BYTES)) == 0
    assert runtime.cudaFree(block) == 0


def main() -> None:
    times = int(sys.argv[2])
    print("held", file=sys.stderr, flush=True)
    sys.stdin.readline()
    assert runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1000)) == 0
    for _ in range(times):
        leaking()
        balanced()
        time.sleep(0.05)
    print(json.dumps({"leaking": times * BYTES, "main": 1000}))


main()
