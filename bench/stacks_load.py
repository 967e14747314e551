"""Makes batches of traced calls at a depth of Python frames, as it is told on its input.

usage: stacks_load.py LIBCUDART DEPTH_LIBRARY; each line: frames, functions among them (beside the two of this program),
calls, whether each is at another depth of the stack.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from itertools import cycle
from typing import Any

memset = ctypes.CDLL(sys.argv[1]).cudaMemset
at_depth = ctypes.CDLL(sys.argv[2]).at_depth
at_depth.argtypes = [ctypes.c_void_p, ctypes.c_long]
address = ctypes.cast(memset, ctypes.c_void_p)
BYTES = cycle(range(0, 1 << 19, 64))
# compiled once for each function: none shares its code object or its line table with another
SOURCE = """
def call(callers, count, is_copied):
    if callers:
        callers[0](callers[1:], count, is_copied)
        return
    for _ in range(count):
        at_depth(address, next(BYTES) if is_copied else 64)
"""


def function(number: int) -> Callable[..., Any]:
    """One of the functions that call each other."""
    found: dict[str, Any] = globals().copy()
    exec(compile(SOURCE, f"function_{number}.py", "exec"), found)
    called: Callable[..., Any] = found["call"]
    return called


def main() -> None:
    """Until the input ends."""
    functions = [function(number) for number in range(100)]
    print("ready", flush=True)
    for line in sys.stdin:
        frames, different, count, is_copied = map(int, line.split())
        callers = [functions[number % different] for number in range(frames - 2)]
        callers[0](callers[1:], count, bool(is_copied))
        print("done", flush=True)


main()
