"""The contents of a recording: sessions, processes, threads, containers, the time range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ingero.store.conditions import period_ns
from ingero.store.last_second import LIVE_NS
from ingero.store.narrowing import ID_STEP
from ingero.store.reader.questions import Questions, fields_of, listed
from ingero.store.records import Container, NodeClock, Process, Session, Thread, Window
from ingero.units import SECOND_NS

START_NS = 30 * SECOND_NS  # longest start: attaching to very many processes

# Where recorded time begins and ends: a column that is found by index, the table, how long its rows stand for.
# Downsampled rows are precise only to the minute.
_SECONDS = "WHERE period_s < 60"
_TIMES = (
    ("start_ns", "raw_events", "1"),
    ("sync_end_ns", "raw_sync_intervals", "1"),
    ("start_ns", f"raw_op_stats {_SECONDS}", period_ns()),
    ("start_ns", f"raw_thread_state_seconds {_SECONDS}", period_ns()),
    ("time_ns", "raw_in_flight", "1"),
)

# What the size limit keeps longest: sums by the minute, digests of sync intervals, findings.
_KEPT = (("start_ns", "raw_op_stats"), ("end_ns", "raw_sync_interval_digest"), ("start_ns", "raw_incidents"))


class ContentQuestions(Questions):
    """Queries for the contents of the file."""

    def sessions(self) -> list[Session]:
        """The recordings in the file, oldest first."""
        return self._records(Session, f"SELECT {fields_of(Session)} FROM raw_sessions ORDER BY started_ns")

    def node_clocks(self) -> dict[str, NodeClock]:
        """Clock offset of each node when its recording was last fetched."""
        sessions = self._rows("SELECT session, node FROM raw_sessions")
        node_of = {session: str(node) for session, node in sessions}
        return {node_of[session]: clock for session, clock in self.clock_comparisons() if session in node_of}

    def clock_comparisons(self) -> list[tuple[int, NodeClock]]:
        """Clock offsets of nodes with the session of each, in the order of time."""
        if not self.is_recorded("raw_node_clocks"):
            return []
        rows = self._rows("SELECT session, at_ns, offset_ns, bound_ns, reference FROM raw_node_clocks ORDER BY at_ns")
        return [
            (session, NodeClock(at_ns=at, offset_ns=offset, bound_ns=bound, reference=reference))
            for session, at, offset, bound, reference in rows
        ]

    def clock_pairs(self) -> Iterator[tuple[int, int, int, int | None]]:
        """Session, CLOCK_MONOTONIC and Unix ns of each time at which a recorder read both, by session and time.

        The last field is how long the host had been suspended until then; None: not recorded.
        """
        if self.older_version or not self.is_recorded("raw_clock_pairs"):
            return iter(())
        return self._each(
            "SELECT session, mono_ns, unix_ns, suspended_ns FROM raw_clock_pairs ORDER BY session, mono_ns"
        )

    def boots(self) -> dict[int, str]:
        """The boot id of the host by session; "" where it is not known."""
        if "boot_id" not in {name for (name,) in self._rows("SELECT name FROM pragma_table_info('raw_sessions')")}:
            return {}
        return dict(self._rows("SELECT session, boot_id FROM raw_sessions"))

    def agent_pids(self, window: Window) -> frozenset[int]:
        """The pids of agents that recorded in the window; none if the build that began the file stored none."""
        if "agent_pid" not in {name for (name,) in self._rows("SELECT name FROM pragma_table_info('raw_sessions')")}:
            return frozenset()
        sql = "SELECT agent_pid FROM raw_sessions WHERE agent_pid AND started_ns < :end AND last_seen_ns >= :begin"
        return frozenset(pid for (pid,) in self._rows(sql, window))

    def processes(self, *, only_traced: bool = True) -> list[Process]:
        """The processes seen, in order of their numbers."""
        where = "WHERE is_traced" if only_traced else ""
        return self._records(Process, f"SELECT {fields_of(Process)} FROM raw_processes {where} ORDER BY process")

    def processes_since(self, since_ns: int, *, also: Iterable[int] = ()) -> list[Process]:
        """The processes without those that had ended by then, except the processes in `also` and their children."""
        numbers = listed(also)
        pids = f"SELECT pid FROM raw_processes WHERE process IN ({numbers})"
        return self._records(
            Process,
            f"SELECT {fields_of(Process)} FROM raw_processes WHERE exit_ns IS NULL OR exit_ns >= :since "
            f"OR process IN ({numbers}) OR parent_pid IN ({pids}) ORDER BY process",
            since=since_ns,
        )

    def threads(self, processes: Iterable[int] | None = None) -> list[Thread]:
        """The threads seen of traced processes, or of these only, in the order in which they were last seen."""
        of_these = "" if processes is None else f"WHERE process IN ({listed(processes)})"
        return self._records(
            Thread, f"SELECT {fields_of(Thread)} FROM raw_threads {of_these} ORDER BY last_seen_ns", table="raw_threads"
        )

    def containers(self) -> list[Container]:
        """The cgroups seen."""
        return self._records(Container, f"SELECT {fields_of(Container)} FROM raw_cgroups ORDER BY cgroup_id")

    def is_live(self, now_ns: int) -> bool:
        """Whether an agent is recording into the file now."""
        seen = self._rows("SELECT max(last_seen_ns) FROM raw_sessions WHERE stopped_ns IS NULL")[0][0]
        return not self.older_version and seen is not None and now_ns - seen < LIVE_NS

    def time_range(self) -> Window | None:
        """The time range from the first to the last record; None for an empty file."""
        sources = _TIMES[:1] if self.older_version else _TIMES  # their totals are of whole minutes
        ends = [
            (first, end)
            for time, source, length_ns in sources
            for first, end in self._rows(
                f"SELECT (SELECT min({time}) FROM {source}), "
                f"(SELECT {time} + {length_ns} FROM {source} ORDER BY {time} DESC LIMIT 1)"
            )
            if first is not None
        ]
        if not ends:
            ends = [(s.started_ns, s.last_seen_ns + 1) for s in self.sessions()]
        if not ends:
            return None
        return Window(begin_ns=min(first for first, _ in ends), end_ns=max(end for _, end in ends))

    def kept_since_ns(self, whole: Window) -> int:
        """The earliest time of which anything is stored: sums by the minute and findings may be older than `whole`."""
        if self.older_version:
            return whole.begin_ns
        oldest: list[int | None] = [
            self._rows(f"SELECT min({time}) FROM {table} WHERE {time} > 0")[0][0]
            for time, table in _KEPT
            if self.is_recorded(table)
        ]
        return min([whole.begin_ns, *(at for at in oldest if at is not None)])

    def window(self, since_ns: int | None, now_ns: int) -> Window | None:
        """The last `since_ns` of the recording, or all that is kept in full; None for an empty file.

        Counts back from now while the file is being written, else from its newest record: a saved recording never looks
        empty.
        """
        whole = self.time_range()
        if whole is None:
            return None
        end_ns = max(now_ns, whole.end_ns) if self.is_live(now_ns) else whole.end_ns
        begin_ns = whole.begin_ns if since_ns is None else max(self.kept_since_ns(whole), end_ns - since_ns)
        return Window(begin_ns=begin_ns, end_ns=end_ns)

    def recorded_ns(self, window: Window) -> int:
        """How much of a window the file's recordings cover, in ns; at least 1."""
        if self.older_version:
            return max(window.duration_ns, 1)
        sessions = self.sessions()
        ends = accumulate(
            (session.stopped_ns or session.last_seen_ns for session in sessions), max
        )  # nodes record at once
        pauses = zip(ends, (after.started_ns for after in sessions[1:]), strict=False)
        inside = (min(end, window.end_ns) - max(begin, window.begin_ns) for begin, end in pauses)
        return max(window.duration_ns - sum(max(0, ns) for ns in inside), 1)

    def counted_until_ns(self) -> int:
        """The end of the last second with stored sums, including the observations made at its end.

        A second is a millisecond or two longer than nominal, and calls in flight are checked when it ends.
        """
        newest = f"SELECT start_ns + {period_ns()} FROM raw_thread_state_seconds ORDER BY start_ns DESC LIMIT 1"
        end_ns = int(self._rows(f"SELECT coalesce(({newest}), {SECOND_NS})")[0][0])
        seen = self._rows(f"SELECT max(time_ns) FROM raw_in_flight WHERE time_ns < {end_ns + SECOND_NS // 2}")
        return max(end_ns, int(seen[0][0] or 0) + 1)

    def counting_since_ns(self, started_ns: int) -> int:
        """The first second of the recording that started then; its start if that second was pruned."""
        if not self.is_recorded("raw_thread_state_seconds"):
            return started_ns
        within = f"start_ns BETWEEN {started_ns} AND {started_ns + START_NS}"
        (first,) = self._rows(f"SELECT min(start_ns) FROM raw_thread_state_seconds WHERE {within}")[0]
        return started_ns if first is None else int(first)

    def stored_calls(self) -> int:
        """How many recorded calls and host events the file holds, at most."""
        if self.older_version:
            return 0
        ids = "SELECT (SELECT min(id) FROM raw_events WHERE {0}), (SELECT max(id) FROM raw_events WHERE {0})"
        within = (f"id BETWEEN {base} AND {base + ID_STEP - 1}" for base in self._id_bases())
        ends = (self._rows(ids.format(condition))[0] for condition in within)
        return sum(int(last) - int(first) + 1 for first, last in ends if first is not None)

    def _id_bases(self) -> list[int]:
        """The first id of each file that was merged into this one."""
        if "seq_base" not in {name for (name,) in self._rows("SELECT name FROM pragma_table_info('raw_sessions')")}:
            return [0]
        return [base for (base,) in self._rows("SELECT DISTINCT seq_base FROM raw_sessions")] or [0]

    def texts(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> dict[int, str]:
        """The texts behind numbers of columns that say "string", e.g. step_type of a sync interval."""
        rows = self._rows(f"SELECT string, text FROM raw_strings WHERE string IN ({listed(set(numbers))})")
        return {0: ""} | dict(rows)
