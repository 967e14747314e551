"""A process that is no target any more: its threads keep their accounts, and its calls must not count."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from ingero.attach.kernel_side import KernelSide, KernelSizes
from ingero.attach.probes import CallSite
from ingero.capture.budget.calibration import EMPTY_FUNCTION
from ingero.capture.sums.cells import CellReader

pytestmark = pytest.mark.integration


@contextmanager
def probed_function(kernel: KernelSide) -> Iterator[Callable[[], int]]:
    """A function of this process with the call programs on it."""
    fd = os.memfd_create("function")
    try:
        os.write(fd, EMPTY_FUNCTION[os.uname().machine].ljust(mmap.PAGESIZE, b"\0"))
        code = mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
        assert not kernel.attach_calls([CallSite(path=f"/proc/{os.getpid()}/fd/{fd}", offset=0, cookie=0)])
        yield ctypes.CFUNCTYPE(ctypes.c_int)(np.frombuffer(code, np.uint8).ctypes.data)
    finally:
        os.close(fd)


def test_calls_count_until_their_process_is_released_and_again_in_its_next_slot() -> None:
    with KernelSide(KernelSizes(cells=4096, kernels=4096)) as kernel:
        kernel.start()
        reader = CellReader(kernel.maps["cell_keys"], kernel.maps["cells"], kernel.layouts.dtype("cell"))
        slots, counts = [], []
        with probed_function(kernel) as function:
            for number in (3, 5):
                slot = kernel.take_slot(os.getpid(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
                assert slot is not None
                slots.append(slot)
                kernel.admit(os.getpid(), slot)
                for _ in range(number):
                    function()
                kernel.release(os.getpid())
                for _ in range(7):
                    function()
                counts.append([(cell.slot, int(cell.growth["count"])) for cell in reader.read(1.0)])
        assert slots[0] != slots[1]
        assert counts == [[(slots[0], 3)], [(slots[1], 5)]]
