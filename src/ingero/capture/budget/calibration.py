"""Measures how much of a probed call's duration is the probe itself, on an empty function of our own."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.attach.probes import CallProbes, CallSite
from ingero.capture.loop.rings import Ring
from ingero.discover import kernel_clock

_BETWEEN = 400  # numbers to add up, some 4 us: right after one another calls find the trap's path better predicted
_CALLS = 90  # all of them are recorded: a new cell records its first 100
EMPTY_FUNCTION = {"x86_64": b"\x90\xc3", "aarch64": b"\x1f\x20\x03\xd5\xc0\x03\x5f\xd6"}  # nop; ret


class OwnCode:
    """Machine code that this process can call, in a file of its own, so that it can be probed."""

    def __init__(self, code: bytes) -> None:
        self._fd = os.memfd_create("ingero-calibration")
        os.write(self._fd, code.ljust(mmap.PAGESIZE, b"\0"))
        self._memory = mmap.mmap(self._fd, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def function(self, offset: int, *arguments: type[ctypes.c_long]) -> Callable[..., int]:
        """A callable for the function at an offset of the code."""
        # ctypes takes the address of writable buffers only, numpy of any
        address = np.frombuffer(self._memory, np.uint8).ctypes.data + offset
        found: Callable[..., int] = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(address)
        return found

    def close(self) -> None:
        """Closes the file; the memory is freed with the last reference to it."""
        os.close(self._fd)


@contextmanager
def traced_here(kernel: KernelSide, code: OwnCode, offsets: Sequence[int]) -> Iterator[int | None]:
    """Traces this process, with probes on its functions at `offsets` as operation 0; yields its slot, if one is left.

    Only threads that end inside the block may call them: a thread takes its account with it, and one that lives on
    would be counted with the next process that gets the slot.
    """
    own_pid = os.getpid()
    with ExitStack() as stack:
        probes = CallProbes(kernel.calls, kernel.mode)
        stack.callback(probes.close)
        probes.attach([CallSite(path=code.path, offset=offset, cookie=0) for offset in offsets])
        slot = kernel.take_slot(own_pid, kernel_clock.boottime_ns())
        if slot is not None:
            stack.callback(kernel.release, own_pid)
            kernel.admit(own_pid, slot)
        yield slot


def in_a_thread(function: Callable[[], None]) -> None:
    """Runs a function in a thread of its own, to its end."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def calibrate(kernel: KernelSide, calls: Ring, forget: Callable[[int], None]) -> int:
    """Sets and returns `probe_ns`, the usual duration of an empty call; 0 where calls have no durations.

    forget: removes what a slot has left in the kernel's sums.
    """
    code = OwnCode(EMPTY_FUNCTION[platform.machine()])
    try:
        with traced_here(kernel, code, [0]) as slot:
            if slot is None:
                return 0
            function = code.function(0)
            in_a_thread(lambda: _call_often(function))
    finally:
        code.close()
    records = calls.drain()
    durations = records["duration_ns"][records["pid"] == os.getpid()]
    forget(slot)
    probe_ns = int(np.median(durations)) if len(durations) else 0
    kernel.change_settings(probe_ns=probe_ns)
    return probe_ns


def _call_often(function: Callable[..., int]) -> None:
    """Calls a function as a program would, with a few microseconds of Python between two calls."""
    for _ in range(_CALLS):
        sum(range(_BETWEEN))
        function()
