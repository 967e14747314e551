"""What is kept of the stacks of processes goes with them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from ingero.attach.kernel_side import KernelSide
from ingero.attach.objects import object_path
from ingero.capture.processes.callers import CallerLocations
from ingero.capture.processes.traced_processes import TracedProcess
from ingero.capture.stacks import stacks
from ingero.capture.stacks.stacks import Stacks
from ingero.decode.btf import btf_of
from ingero.discover.processes import ProcessId

LAYOUTS = btf_of(object_path("layouts"))
NO_PID = 2**22 + 1  # beyond the highest there can be


class Table:
    """A map of the kernel side that takes everything."""

    def update(self, key: bytes, value: bytes) -> None:
        """Takes it."""

    def delete(self, key: bytes) -> bool:
        """There is none."""
        return bool(key) and False


class Kernel:
    """A kernel side, as stacks use it."""

    layouts = LAYOUTS

    def __init__(self) -> None:
        self.maps = {name: Table() for name in ("deciding", "seen_python", "python_layouts")}
        self.walker = SimpleNamespace(is_kernel=True)


def target(number: int) -> TracedProcess:
    return TracedProcess(
        slot=1, id=ProcessId(NO_PID, 1), number=number, start_ns=0, name="a", callers=CallerLocations(NO_PID)
    )


def test_calls_that_come_behind_the_end_of_their_process_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_PATIENCE_S", 0.05)
    found = Stacks(cast(KernelSide, Kernel()), lambda _rows: None)
    with found.worker:
        found.begin(target(7))
        found.end(target(7))  # starts and ends of processes are handed over before the calls of the same sync
        found.hashes([7, 7, 7], np.array([1, 2, 3], np.uint64))
        end = time.monotonic() + 30
        while found._seen or found._processes:
            assert time.monotonic() < end
            time.sleep(0.01)
