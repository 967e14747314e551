"""Recorded calls one by one, calls in flight, and collectives."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from ingero.ops import OPS, Kind
from ingero.store import views
from ingero.store.arrays import arrays
from ingero.store.conditions import of_process, within
from ingero.store.reader import answers, call_queries
from ingero.store.reader.questions import Questions, fields_of, listed
from ingero.store.records import Call, Collective, Communicator, HaltRow, InFlight, Window
from ingero.store.vocabulary import STATE_COLUMNS

_CALLS_AT_AN_END = 20_000  # calls at each end of a window: some minutes of a busy program


class CallQuestions(Questions):
    """Queries for single calls."""

    def call_rows(
        self,
        window: Window,
        *,
        sources: Sequence[int],
        process: int | None = None,
        ops: Collection[tuple[int, int]] | None = None,
    ) -> npt.NDArray[np.void]:
        """Recorded calls or host events of these sources that began in the window: `arrays.CALL_DTYPE`.

        ops: only these (source, op).
        """
        of_ops = (
            "" if ops is None else f"AND (source, op) IN (VALUES {', '.join(f'({s}, {o})' for s, o in sorted(ops))})"
        )
        rows = self._each(
            f"SELECT {arrays.CALL_COLUMNS} FROM raw_events WHERE {within('start_ns')} "
            f"AND source IN ({listed(sources)}) {of_ops} AND {of_process()} ORDER BY start_ns",
            window,
            process=process,
        )
        return arrays.calls(rows)

    def launching_threads(self, window: Window, *, process: int) -> set[int]:
        """The threads of a process with launches among its first and last recorded calls in the window.

        Threads that launch do so all the time; to look at all calls of an hour takes seconds.
        """
        launches = ", ".join(f"({op.source:d}, {op.code})" for op in OPS if op.kind & Kind.LAUNCH)
        ends = (
            f"SELECT * FROM (SELECT tid, source, op FROM raw_events WHERE {within('start_ns')} AND process = :process "
            f"ORDER BY start_ns {order} LIMIT {_CALLS_AT_AN_END})"
            for order in ("ASC", "DESC")
        )
        rows = self._rows(
            f"SELECT DISTINCT tid FROM ({' UNION ALL '.join(ends)}) WHERE (source, op) IN (VALUES {launches})",
            window,
            process=process,
        )
        return {int(tid) for (tid,) in rows}

    def worst_calls(
        self,
        window: Window,
        *,
        process: int | None = None,
        source: int | None = None,
        op: int | None = None,
        stacks: Collection[int] | None = None,
        limit: int,
    ) -> list[Call]:
        """The longest recorded events that began in the window, longest first. stacks: only these hashes."""
        of_stacks = "" if stacks is None else f"AND stack_hash IN ({listed(stacks)}) "
        inner = (
            f"SELECT * FROM raw_events WHERE {within('start_ns')} AND {of_process()} "
            f"AND (:source IS NULL OR source = :source) AND (:op IS NULL OR op = :op) {of_stacks}"
            "ORDER BY duration_ns DESC LIMIT :limit"
        )
        # Limit first, look up names afterwards: the view over every row of a large file would take seconds.
        view = views.query("events").replace("FROM raw_events e", f"FROM ({inner}) e")
        rows = self._rows(
            f"SELECT {answers.CALL_COLUMNS}, {', '.join(STATE_COLUMNS)} FROM ({view}) ORDER BY duration_ns DESC",
            window,
            process=process,
            source=source,
            op=op,
            limit=limit,
        )
        return [answers.call(row) for row in rows]

    def in_flight(self, window: Window) -> list[InFlight]:
        """Calls seen in flight in the window, each with the last time it was; longest in flight first."""
        return self._records(
            InFlight,
            "SELECT max(f.time_ns), f.process, f.pid, f.tid, f.source, f.op, coalesce(o.name, ''), f.since_ns, "
            "max(f.awake_ns), max(f.stack_hash), max(f.handle), max(f.communicator), max(f.sequence) "
            "FROM raw_in_flight f LEFT JOIN ops o ON o.source_id = f.source AND o.op_id = f.op "
            f"WHERE {within('f.time_ns')} GROUP BY f.process, f.tid, f.source, f.op, f.since_ns "
            "ORDER BY max(f.time_ns) - f.since_ns DESC",
            window,
            table="raw_in_flight",
        )

    def halts(self, window: Window) -> list[HaltRow]:
        """The waits of halted processes sampled in the window, by time; those of one sample outermost first."""
        return self._records(
            HaltRow,
            "SELECT h.time_ns, h.halted, h.since_ns, h.depth, h.process, h.pid, h.tid, coalesce(s.text, ''), h.state, "
            "h.syscall, h.wchan, h.kind, h.object, h.is_timed, h.level, h.owners, h.shm_bytes, h.shm_free_bytes "
            f"FROM raw_halts h LEFT JOIN raw_strings s ON s.string = h.name WHERE {within('h.time_ns')} "
            "ORDER BY h.time_ns, h.id",
            window,
            table="raw_halts",
        )

    def communicators(self) -> list[Communicator]:
        """The communicators of all traced ranks."""
        return self._records(
            Communicator,
            f"SELECT {fields_of(Communicator)} FROM raw_communicators ORDER BY process, number",
            table="raw_communicators",
        )

    def latest_collectives(self) -> list[Collective]:
        """The latest collective of each communicator of each rank, recorded or not; none where it is not known."""
        return self._records(Collective, call_queries.LATEST_COLLECTIVES, table="raw_communicators")

    def nccl_calls(self, window: Window, *, limit: int) -> npt.NDArray[np.void]:
        """The newest recorded NCCL calls that began in the window, newest first: `arrays.NCCL_CALL_DTYPE`."""
        view = views.query("nccl_events").replace(
            "WHERE e.source = 9", f"WHERE e.source = 9 AND {within('e.start_ns')}"
        )
        rows = self._each(call_queries.NCCL_CALLS.format(view=view), window, table="raw_communicators", limit=limit)
        return arrays.nccl_calls(rows)

    def last_collectives(self, window: Window, *, process: int, limit: int) -> list[Collective]:
        """The last recorded collectives of one rank in the window, latest first; without sends and receives."""
        view = views.query("nccl_events").replace(
            "WHERE e.source = 9", "WHERE e.source = 9 AND e.process = :process AND e.start_ns BETWEEN :begin AND :end"
        )
        return self._records(
            Collective,
            f"SELECT process, timestamp, op, comm_id_hash, communicator, sequence, coalesce(datatype_name, ''), "
            f"coalesce(reduce_op_name, ''), root, bytes, stack_hash, tid FROM ({view}) "
            f"WHERE datatype IS NOT NULL AND peer IS NULL ORDER BY timestamp DESC LIMIT :limit",
            window,
            table="raw_communicators",
            process=process,
            limit=limit,
        )
