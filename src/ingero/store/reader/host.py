"""The host around the workload: CPU time, memory, and host events."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingero.ops import Source
from ingero.store import host_events, machine
from ingero.store.reader.questions import Questions, listed
from ingero.store.records import Snapshot, Window


class HostQuestions(Questions):
    """Queries for the host."""

    def cpu_seconds(self, window: Window) -> npt.NDArray[np.void]:
        """How each CPU spent the seconds that end in the window, in order of time: `machine.CPU_SECOND_DTYPE`."""
        return machine.cpu_seconds(self._rows(machine.CPU_SECONDS_SQL, window, table="raw_cpu_seconds"))

    def host_events(
        self, window: Window, *, source: Source | None = None, process: int | None = None
    ) -> list[host_events.HostEvent]:
        """Recorded events of the host that began in the window, oldest first; process: only events of this process."""
        wanted = host_events.SOURCES if source is None else (source,)
        sql = host_events.SQL.format(sources=listed(wanted))
        return host_events.with_stops([host_events.host_event(row) for row in self._rows(sql, window, process=process)])

    def snapshots(self, window: Window) -> list[Snapshot]:
        """Snapshots of the host, second by second."""
        return self._records(Snapshot, machine.SNAPSHOTS_SQL, window)
