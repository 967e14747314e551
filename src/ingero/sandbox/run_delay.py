"""How long a thread has waited for a CPU: what it takes where others run is not its own fault."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class RunDelay:
    """Of the thread that makes this, in seconds; nothing where the kernel does not count it (CONFIG_SCHED_INFO)."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def seconds(self) -> float:
        """So far."""
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
