"""A sink that keeps nothing: `trace --record=false` only watches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ingero.store.writing.tables import Row, Table
from ingero.store.writing.writer import PROCESSES_KNOWN


class NullSink:
    """Takes every row and drops it; numbers are handed out as the database would."""

    session = 0

    def __init__(self, node: str) -> None:
        self.node = node
        self._processes: dict[tuple[int, int], int] = {}
        self._numbered = 0

    def append(self, table: Table, rows: Sequence[Row]) -> int:  # noqa: ARG002  # the interface's names
        """Drops rows."""
        return len(rows)

    def intern(self, text: str) -> int:
        """0 for no text, else 1."""
        return int(bool(text))

    def process_id(self, pid: int, start_ns: int) -> int:
        """The number of a process."""
        key = (pid, start_ns)
        if key not in self._processes:
            self._numbered += 1
            self._processes[key] = self._numbered
            if len(self._processes) > PROCESSES_KNOWN:
                del self._processes[next(iter(self._processes))]
        return self._processes[key]

    def cgroup_keys(self, cgroup_ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The ids unchanged."""
        return cgroup_ids.astype(np.int64)

    def drops(self) -> dict[tuple[str, str], int]:
        """Dropped rows: none, as nothing is stored."""
        return {}
