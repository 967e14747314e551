"""Writes the histograms of call sites, each summed for some seconds, with library and location of its caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.capture.loop.period import Period
from ingero.capture.processes.traced_processes import TracedProcesses
from ingero.capture.records.rows import Sink
from ingero.capture.sums.cells import CellGrowth
from ingero.ops import BY_ID
from ingero.store import histograms
from ingero.store.writing import tables
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

_PERIOD_S = 10  # histograms are large; percentiles of the last seconds come from the live view


@dataclass(slots=True)
class _SiteSums:
    """A call site's sums since they were last written."""

    since_ns: int
    growth: CellGrowth
    histogram: Array
    count: int = 0
    sum_ns: int = 0
    max_ns: int = 0
    size_bytes: int = 0
    until_ns: int = 0

    def add(self, more: CellGrowth, until_ns: int) -> None:
        self.until_ns = until_ns
        self.histogram = self.histogram + more.histogram
        self.count += int(more.growth["count"])
        self.sum_ns += int(more.growth["sum_ns"])
        self.size_bytes += int(more.growth["size_bytes"])
        self.max_ns = max(self.max_ns, more.max_ns)


class CallSiteRows:
    """Writes rows of raw_call_sites."""

    def __init__(self, sink: Sink, traced_processes: TracedProcesses) -> None:
        self._sink, self._traced_processes = sink, traced_processes
        self._sites: dict[tuple[int, int, int], _SiteSums] = {}

    def collect(self, cells: list[CellGrowth], period: Period) -> None:
        """Adds a second's growth, and writes what has been collected for long enough."""
        for cell in cells:
            if not cell.growth["count"]:
                continue
            key = (cell.slot, cell.op, cell.caller)
            site = self._sites.get(key)
            if site is None:
                site = self._sites[key] = _SiteSums(period.start_ns, cell, np.zeros(len(cell.histogram), np.uint64))
            site.add(cell, period.end_ns)
        due = [key for key, site in self._sites.items() if period.end_ns - site.since_ns >= _PERIOD_S * SECOND_NS]
        for key in due:
            self._write(self._sites.pop(key))

    def flush(self) -> None:
        """Writes the histograms collected so far, at the end of a recording."""
        for site in self._sites.values():
            self._write(site)
        self._sites.clear()

    def forget(self, slot: int) -> None:
        """Writes what was collected for a process that has ended."""
        for key in [key for key in self._sites if key[0] == slot]:
            self._write(self._sites.pop(key))

    def _write(self, site: _SiteSums) -> None:
        traced_process = self._traced_processes.at(site.growth.slot)
        if traced_process is None or site.growth.op not in BY_ID:
            return
        place = traced_process.callers.place(site.growth.caller)
        op = BY_ID[site.growth.op]
        row = tables.CALL_SITES.rows(
            1,
            session=self._sink.session,
            **Period(site.since_ns, site.until_ns - site.since_ns).columns(),
            process=traced_process.number,
            source=int(op.source),
            op=op.code,
            caller=np.uint64(site.growth.caller).astype(np.int64),
            library=self._sink.intern(place.library) if place.library else 0,
            offset=place.offset if place.library else 0,
            count=site.count,
            sum_ns=site.sum_ns,
            max_ns=site.max_ns,
            bytes=site.size_bytes,
            histogram=histograms.pack(site.histogram),
        )
        self._sink.append(tables.CALL_SITES, row)
