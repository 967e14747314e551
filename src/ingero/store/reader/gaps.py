"""Gaps of a recording: dropped data, calls not traced, reduced tracing, pruned rows."""

from __future__ import annotations

from ingero.ops import Library
from ingero.store.conditions import within
from ingero.store.reader.questions import Questions, fields_of
from ingero.store.records import PYTHON_LINES, Drop, MissingProbe, OverheadLevel, Pruned, Window


class GapQuestions(Questions):
    """Queries for what is missing."""

    def drops(self, window: Window | None = None) -> list[Drop]:
        """Dropped or indistinguishable events by session, counter and reason; of the whole file without a window."""
        where = "" if window is None else f"WHERE {within('start_ns')}"
        return self._records(
            Drop,
            f"SELECT session, counter, reason, sum(count) FROM raw_drops {where} GROUP BY session, counter, reason "
            f"ORDER BY sum(count) DESC",
            window,
            table="raw_drops",
        )

    def overhead_levels(self, window: Window) -> list[OverheadLevel]:
        """The overhead level in force at the begin of the window, and each change in it, oldest first."""
        return self._records(
            OverheadLevel,
            f"SELECT {fields_of(OverheadLevel)} FROM raw_overhead_levels WHERE time_ns < :end AND time_ns >= "
            "coalesce((SELECT max(time_ns) FROM raw_overhead_levels WHERE time_ns <= :begin), :begin) "
            "ORDER BY time_ns, id",
            window,
            table="raw_overhead_levels",
        )

    def pruned(self) -> list[Pruned]:
        """Rows that the size limit has pruned from the file so far, longest ago last; empty: none."""
        if self.older_version:
            return []
        columns = "replace(name, 'raw_', '') AS name, kind, until_ns, rows, noted_ns, max_db_bytes"
        return self._records(Pruned, f"SELECT {columns} FROM raw_pruned WHERE rows > 0 ORDER BY until_ns DESC, name")

    def unseen_files(self) -> list[MissingProbe]:
        """Libraries without any traced call, and interpreters whose Python lines could not be read."""
        if not self.is_recorded("raw_probes"):
            return []
        names = ", ".join(f"'{name}'" for name in (*(one.value for one in Library), PYTHON_LINES))
        return self._records(
            MissingProbe,
            "SELECT session, library, symbol, source, op, reason FROM raw_probes "
            f"WHERE NOT is_attached AND symbol IN ({names}) ORDER BY session, library, symbol",
            table="raw_probes",
        )

    def missing_probes(self) -> list[MissingProbe]:
        """Calls that were not traced, by copy of a library."""
        return self._records(
            MissingProbe,
            "SELECT session, library, symbol, source, op, reason FROM raw_probes WHERE NOT is_attached "
            "ORDER BY session, library, symbol",
            table="raw_probes",
        )
