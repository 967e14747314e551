"""Selects the rows of a part of a recording: all that a query about that time could read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import apsw

from ingero.store.merge.nodes import SourceSession
from ingero.store.reader.contents import START_NS
from ingero.store.records import Window
from ingero.units import SECOND_NS

# A call that began so long before the part and reaches into it is found by the index of begins.
_LOOK_BACK_NS = 600 * SECOND_NS
_LONGEST_PERIOD_NS = 60 * SECOND_NS  # that a row of sums stands for (retention folds seconds into minutes)

_PERIOD = (
    f"s.start_ns >= {{begin}} - {_LONGEST_PERIOD_NS} AND s.start_ns < {{end}} "
    f"AND s.start_ns + CAST(s.period_s * {SECOND_NS} AS INTEGER) > {{begin}}"
)
_DURATION = (
    f"s.start_ns >= {{begin}} - {_LOOK_BACK_NS} AND s.start_ns < {{end}} "
    "AND (s.start_ns >= {begin} OR s.start_ns + s.duration_ns > {begin})"
)
_WAS_THERE = f"{{0}}.first_seen_ns < {{end}} AND coalesce({{0}}.exit_ns, {{begin}}) >= {{begin}} - {_LOOK_BACK_NS}"
_OF_PROCESS = f"s.process IN (SELECT p.process FROM raw_processes p WHERE {_WAS_THERE.replace('{0}', 'p')})"

# By table, where its columns do not say it. Some rows hold until the next of their kind: those from so long before the
# part are among them that the one in force at its begin is.
_OF_TABLE: Mapping[str, str] = {
    "raw_processes": _WAS_THERE.replace("{0}", "s"),
    "raw_incidents": "s.start_ns < {end} AND coalesce(s.end_ns, {end}) >= {begin}",
    # The first second of a session says when its recorder had started.
    "raw_thread_state_seconds": f"({_PERIOD}) OR s.start_ns < {{begin}} AND s.session IN (SELECT o.session "
    f"FROM raw_sessions o WHERE o.started_ns > {{begin}} - {START_NS} AND o.started_ns <= {{begin}})",
    "raw_overhead_levels": "s.time_ns < {end}",
    "raw_scheduling": f"s.time_ns >= {{begin}} - {660 * SECOND_NS} AND s.time_ns < {{end}}",  # every ten minutes
    "raw_allocations": f"s.start_ns >= {{begin}} - {180 * SECOND_NS} AND s.start_ns < {{end}}",  # every minute
    "raw_memory_seconds": f"s.start_ns >= {{begin}} - {180 * SECOND_NS} AND s.start_ns < {{end}}",
}
# Else by the first of these that a table has all columns of.
_OF_COLUMNS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"start_ns", "period_s"}), _PERIOD),
    (frozenset({"start_ns", "duration_ns"}), _DURATION),
    (frozenset({"prev_sync_end_ns", "sync_end_ns"}), "s.sync_end_ns >= {begin} AND s.prev_sync_end_ns < {end}"),
    (frozenset({"begin_ns", "end_ns"}), "s.end_ns >= {begin} AND s.begin_ns < {end}"),
    (frozenset({"start_ns", "end_ns"}), "s.end_ns >= {begin} AND s.start_ns < {end}"),
    (frozenset({"session", "time_ns"}), "s.time_ns >= {begin} AND s.time_ns < {end}"),
    (frozenset({"session", "detected_ns"}), "s.detected_ns >= {begin} AND s.detected_ns < {end}"),
    (frozenset({"process"}), _OF_PROCESS),
    (frozenset(), "true"),
)
# What reaches into the part, and when it began. A row of the first sync interval of a stream has no begin: what it adds
# up to.
_REACHES_IN: Mapping[str, str] = {
    "raw_sync_intervals": "SELECT min(sync_end_ns - idle_ns - busy_ns - return_delay_ns) FROM raw_sync_intervals "
    "WHERE sync_end_ns >= {begin} AND sync_end_ns < {end}",
    "raw_steps": "SELECT min(start_ns) FROM raw_steps WHERE end_ns >= {begin} AND end_ns < {end}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A time range to extract from a recording; most_bytes: largest size of the resulting file."""

    window: Window
    most_bytes: int

    def has(self, session: SourceSession) -> bool:
        """Whether a session recorded within the part."""
        return session.started_ns < self.window.end_ns and session.last_seen_ns >= self.window.begin_ns

    def with_what_reaches_in(self, db: apsw.Connection, tables: Collection[str]) -> Part:
        """The part, extended to the begin of its first step or sync interval, for the causes of its length."""
        begin_ns = self.window.begin_ns
        for table in _REACHES_IN.keys() & set(tables):
            [(first_ns,)] = db.execute(self._sql(_REACHES_IN[table]))
            begin_ns = min(begin_ns, begin_ns if first_ns is None else int(first_ns))
        begin_ns = max(begin_ns, self.window.begin_ns - _LOOK_BACK_NS)
        return replace(self, window=replace(self.window, begin_ns=begin_ns))

    def condition(self, table: str, columns: Collection[str]) -> str:
        """SQL condition for the rows of a table, alias `s`, that belong to the part."""
        text = _OF_TABLE.get(table) or next(text for wanted, text in _OF_COLUMNS if wanted <= set(columns))
        return self._sql(f"({text})")

    def _sql(self, text: str) -> str:
        return text.replace("{begin}", str(self.window.begin_ns)).replace("{end}", str(self.window.end_ns))
