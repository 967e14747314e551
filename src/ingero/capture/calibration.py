"""How much of a probed call's account is the probe itself: measured on an empty function of our own."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from ingero.attach.kernel_side import KernelSide
from ingero.attach.probes import CallProbes, CallSite
from ingero.capture.rings import Ring

_CALLS = 90  # all of them are recorded: a new cell records its first 100
_EMPTY_FUNCTION = {"x86_64": b"\x90\xc3", "aarch64": b"\x1f\x20\x03\xd5\xc0\x03\x5f\xd6"}  # nop; ret


def calibrate(kernel: KernelSide, calls: Ring, forget: Callable[[int], None]) -> int:
    """Sets and returns `probe_ns`, the usual account of an empty call; 0 where calls have no durations.

    A thread of the agent is a target while this lasts, and takes its account with it: threads enrolled for good would
    be counted with the next process that gets the slot. forget: removes what a slot has left in the kernel's sums.
    """
    own_pid = os.getpid()
    with ExitStack() as stack:
        fd = os.memfd_create("ingero-calibration")
        stack.callback(os.close, fd)
        os.write(fd, _EMPTY_FUNCTION[platform.machine()].ljust(mmap.PAGESIZE, b"\0"))
        code = mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        probes = CallProbes(kernel.calls, kernel.mode)
        stack.callback(probes.close)
        probes.attach([CallSite(path=f"/proc/{own_pid}/fd/{fd}", offset=0, cookie=0)])
        slot = kernel.take_slot(own_pid, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        if slot is None:
            return 0
        stack.callback(kernel.release, own_pid)
        kernel.admit(own_pid, slot)
        caller = threading.Thread(target=_call_often, args=(code,))
        caller.start()
        caller.join()
    records = calls.drain()
    durations = records["duration_ns"][records["pid"] == own_pid]
    forget(slot)
    probe_ns = int(np.median(durations)) if len(durations) else 0
    kernel.maps["settings"].update(struct.pack("<I", 0), struct.pack("<Q", probe_ns))
    return probe_ns


def _call_often(code: mmap.mmap) -> None:
    # ctypes takes the address of writable buffers only, numpy of any
    function = ctypes.CFUNCTYPE(ctypes.c_int)(np.frombuffer(code, np.uint8).ctypes.data)
    for _ in range(_CALLS):
        function()
