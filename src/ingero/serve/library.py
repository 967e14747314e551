"""A recording as Python objects, for notebooks and scripts: `from ingero import open_recording`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis
from ingero.events import STATES
from ingero.serve.sql import run_sql
from ingero.store.errors import EmptyRecordingError
from ingero.store.opening.locations import database_path
from ingero.store.reader import open_reader
from ingero.store.records import OpTotals, Process, Session, Window
from ingero.store.sql_text import Row
from ingero.units import parse_duration_s

_CLOCKS_OF_SYNC_INTERVALS = ("idle", "launch", "sync")


class Table(dict[str, list[object]]):
    """Columns by name, of equal length: `pandas.DataFrame(table)` and `polars.DataFrame(table)` take it as it is.

    notes: what to know about the numbers, one sentence each. is_truncated: there were more rows.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Row], *, notes: Sequence[str] = (), is_truncated: bool = False
    ) -> None:
        super().__init__({name: [row[at] for row in rows] for at, name in enumerate(columns)})
        self.notes = tuple(notes)
        self.is_truncated = is_truncated
        self._rows = rows

    @property
    def rows(self) -> Sequence[Row]:
        """The rows one by one."""
        return self._rows


class Recording:
    """One recording, opened to be read; a context manager. Nothing is ever written to it.

    since, where a method takes it: only the last "90s", "5m", "1h30m" of the recording. One thread at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = open_reader(path)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def window(self, since: str | None = None) -> Window:
        """The time range of the recording, Unix ns.

        Raises:
            EmptyRecordingError: nothing is recorded yet.
        """
        since_ns = int(parse_duration_s(since) * 1e9) if since else None
        window = self._reader.window(since_ns, time.time_ns())
        if window is None:
            raise EmptyRecordingError(self.path, self._reader.missing_end)
        return window

    @cached_property
    def sessions(self) -> list[Session]:
        """The runs of `ingero trace` in the file, oldest first."""
        return self._reader.sessions()

    @cached_property
    def processes(self) -> list[Process]:
        """The traced processes."""
        return self._reader.processes()

    def op_totals(self, since: str | None = None) -> Table:
        """Totals of calls, a row per process and operation, highest total first; exact unless `notes` say otherwise.

        Columns: those of `OpTotals`, thread-state time as run_ns ... stopped_ns (None where it was not recorded).
        """
        notes = () if self._reader.has_exact_totals else ("Counts and sums are of the stored calls only.",)
        rows = [tuple(_values(total)) for total in self._reader.op_totals(self.window(since))]
        return Table(_OP_COLUMNS, rows, notes=notes)

    def sync_intervals(self, since: str | None = None, *, process: int | None = None) -> npt.NDArray[np.void]:
        """The sync intervals, in order of their ends, as `ingero.store.arrays.arrays.SYNC_INTERVAL_DTYPE` has it.

        process: `Process.process` of one of `processes`.

        Raises:
            NotRecordedError: an older Ingero recorded none.
        """
        return self._reader.sync_intervals(self.window(since), process=process)

    def sync_interval_columns(
        self, since: str | None = None, *, process: int | None = None
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Sync intervals as flat columns; thread-state time as idle_run_ns, launch_runq_ns ...; -1: not recorded."""
        sync_intervals = self.sync_intervals(since, process=process)
        plain = {
            name: sync_intervals[name]
            for name in sync_intervals.dtype.names or ()
            if sync_intervals.dtype[name].shape == ()
        }
        clocks = {
            f"{part}_{clock}_ns": sync_intervals[f"{part}_state_ns"][:, at]
            for part in _CLOCKS_OF_SYNC_INTERVALS
            for at, clock in enumerate(STATES)
        }
        return plain | clocks

    def diagnose(self, since: str | None = None) -> Diagnosis:
        """What happened and why: incidents worst first, verdicts, and what could not be evaluated."""
        return diagnose(self._reader, self.window(since))

    def sql(self, statement: str, *, max_rows: int = 1_000_000, timeout_s: float = 60.0) -> Table:
        """The answer to one SELECT over the published views (docs/schema.md).

        Raises:
            SqlError: the statement is refused, wrong, or needs too much time or room.
        """
        answer = run_sql(self.path, statement, max_rows=max_rows, timeout_s=timeout_s)
        return Table(answer.columns, answer.rows, notes=answer.notes, is_truncated=answer.is_truncated)


def open_recording(path: str | Path | None = None) -> Recording:
    """Open a recording of this product or of Ingero 0.x; without a path the one `ingero explain` would read.

    Raises:
        StoreError: there is no such file, it is not a recording, is damaged, may not be read, or is too new.
    """
    return Recording(database_path(path, os.environ, uid=os.getuid()))


_PLAIN_OP_COLUMNS = tuple(name for name in OpTotals.__dataclass_fields__ if name != "clocks")
_OP_COLUMNS = (*_PLAIN_OP_COLUMNS, *(f"{clock}_ns" for clock in STATES))


def _values(totals: OpTotals) -> Iterator[int | float | str | None]:
    yield from (getattr(totals, name) for name in _PLAIN_OP_COLUMNS)
    clocks = asdict(totals.clocks) if totals.clocks else {}
    yield from (clocks.get(f"{clock}_ns") for clock in STATES)
