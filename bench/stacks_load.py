"""Makes batches of traced calls at a depth of Python frames, as it is told on its input.

usage: stacks_load.py LIBCUDART DEPTH_LIBRARY; each line: frames, calls, whether each is at another depth of the stack.
"""

from __future__ import annotations

import ctypes
import sys
from itertools import cycle

memset = ctypes.CDLL(sys.argv[1]).cudaMemset
at_depth = ctypes.CDLL(sys.argv[2]).at_depth
at_depth.argtypes = [ctypes.c_void_p, ctypes.c_long]
address = ctypes.cast(memset, ctypes.c_void_p)
BYTES = cycle(range(0, 1 << 19, 64))


def call(depth: int, count: int, is_copied: bool) -> None:
    """The calls, from a stack of `depth` frames."""
    if depth > 2:  # the module and this one
        call(depth - 1, count, is_copied)
        return
    for _ in range(count):
        at_depth(address, next(BYTES) if is_copied else 64)


def main() -> None:
    """Until the input ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        depth, count, is_copied = map(int, line.split())
        call(depth - 1, count, bool(is_copied))
        print("done", flush=True)


main()
