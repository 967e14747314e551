"""Major faults per process: growth of the kernel's own counts, ended threads included."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class MajorFaults:
    """Reads major faults; keeps the counts of the last reading.

    processes: the mapped array of `struct process`. since_boottime_ns: when tracing began; what a process had when it
    was first seen counts only if it was born after that.
    """

    def __init__(self, processes: Array, since_boottime_ns: int) -> None:
        self._processes, self._since_boottime_ns = processes, since_boottime_ns
        self._before: dict[int, int] = {}

    def read(self, threads: Array) -> dict[int, int]:
        """Growth by slot since the last reading. threads: one `struct thread_dump` each."""
        grown: dict[int, int] = {}
        slots = threads["process_slot"]
        for slot in sorted(set(slots.tolist())):
            mine = threads[slots == slot]
            # A thread that ends while the dump is made may be in both: the next reading makes up for it.
            now = int(mine["major_faults"].sum()) + int(mine["gone_major_faults"].max())
            is_born = int(self._processes[slot]["start_boottime_ns"]) > self._since_boottime_ns
            before = self._before.get(slot, 0 if is_born else now)
            self._before[slot] = max(now, before)
            grown[slot] = max(0, now - before)
        return grown

    def forget(self, slot: int) -> None:
        """Forgets a slot whose process has ended."""
        self._before.pop(slot, None)
