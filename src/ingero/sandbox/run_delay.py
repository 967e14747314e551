"""Measures how long a thread has waited for a CPU, so that it is not charged for that time."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class RunDelay:
    """Run-queue wait of the creating thread, s; 0 if the kernel does not count it (CONFIG_SCHED_INFO)."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def seconds(self) -> float:
        """The run-queue wait so far, s."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, 128, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def close(self) -> None:
        """Closes the file behind it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    __del__ = close
