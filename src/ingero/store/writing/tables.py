"""The tables a recorder fills: their insert columns, read from schema.sql, and rows made from numpy columns."""

from __future__ import annotations

from dataclasses import dataclass

import apsw

from ingero.store.sql_text import Row, Value, sql_text
from ingero.store.writing.row_columns import Column, Rows, owned

__all__ = ["BY_NAME", "Column", "Row", "Rows", "Table", "Value", "sql_text"]

# apsw keeps statements up to this length compiled; a longer one is compiled again for every batch
_CACHED_SQL_BYTES = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table as a recorder sees it.

    columns: what to pass, in this order. key: the primary key; a row with a key that exists replaces it, a table
    without one is only appended to. defaults: of the columns that `rows` may be given without.
    """

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    defaults: dict[str, Value]

    @property
    def rows_per_statement(self) -> int:
        """How many rows one cached INSERT statement carries."""
        return max(1, (_CACHED_SQL_BYTES - len(self._head())) // (2 * len(self.columns) + 2))

    def insert_sql(self, rows: int = 1) -> str:
        """An INSERT (for keyed tables: or replace) of `rows` rows."""
        row = f"({','.join('?' * len(self.columns))})"
        return self._head() + ",".join([row] * rows)

    def _head(self) -> str:
        verb = "INSERT OR REPLACE" if self.key else "INSERT"
        return f"{verb} INTO {self.name}({','.join(self.columns)}) VALUES"

    def rows(self, count: int, /, **columns: Column) -> Rows:
        """`count` rows from columns by name: arrays or sequences of that length, or one value for all of them.

        Unsigned 64-bit numbers become the signed number with the same bits. Columns left out take their default.

        Raises:
            ValueError: a column is unknown, has another length, or is left out without having a default.
        """
        unknown = columns.keys() - set(self.columns)
        if unknown:
            raise ValueError(f"{self.name} has no column {', '.join(sorted(unknown))}")
        return Rows(count, [self._column(name, count, columns) for name in self.columns])

    def _column(self, name: str, count: int, columns: dict[str, Column]) -> Column:
        if name in columns:
            return owned(f"{self.name}.{name}", columns[name], count)
        if name not in self.defaults:
            raise ValueError(f"{self.name}.{name} has no default and was not given")
        return self.defaults[name]


def _read_schema() -> dict[str, Table]:
    db = apsw.Connection(":memory:")
    try:
        db.execute(sql_text("schema.sql"))
        names = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: _describe(db, name) for name in names}
    finally:
        db.close()


def _describe(db: apsw.Connection, name: str) -> Table:
    info = list(db.execute(f"SELECT name, dflt_value, pk, \"notnull\" FROM pragma_table_info('{name}')"))
    inserted = [row for row in info if row[0] != "id"]
    defaults: dict[str, Value] = {}
    for column, default, pk, not_null in inserted:
        if default is not None:
            defaults[str(column)] = next(iter(db.execute(f"SELECT {default}")))[0]
        elif not not_null and not pk:
            defaults[str(column)] = None
    key = tuple(str(row[0]) for row in inserted if row[2])
    return Table(name=name, columns=tuple(str(row[0]) for row in inserted), key=key, defaults=defaults)


BY_NAME: dict[str, Table] = _read_schema()

STRINGS = BY_NAME["raw_strings"]
SESSIONS = BY_NAME["raw_sessions"]
CLOCK_PAIRS = BY_NAME["raw_clock_pairs"]
PROCESSES = BY_NAME["raw_processes"]
THREADS = BY_NAME["raw_threads"]
EVENTS = BY_NAME["raw_events"]
OFFCPU = BY_NAME["raw_offcpu"]
SYNC_INTERVALS = BY_NAME["raw_sync_intervals"]
SYNC_INTERVAL_DIGEST = BY_NAME["raw_sync_interval_digest"]
STEPS = BY_NAME["raw_steps"]
PROGRESS_MARKS = BY_NAME["raw_progress_marks"]
GPU_ACTIVITIES = BY_NAME["raw_gpu_activities"]
USER_RANGES = BY_NAME["raw_user_ranges"]
OP_STATS = BY_NAME["raw_op_stats"]
COPIES = BY_NAME["raw_copies"]
CALL_SITES = BY_NAME["raw_call_sites"]
ALLOCATIONS = BY_NAME["raw_allocations"]
MEMORY_SECONDS = BY_NAME["raw_memory_seconds"]
KERNEL_LAUNCHES = BY_NAME["raw_kernel_launches"]
KERNELS = BY_NAME["raw_kernels"]
THREAD_STATE_SECONDS = BY_NAME["raw_thread_state_seconds"]
CULPRITS = BY_NAME["raw_culprits"]
WAKERS = BY_NAME["raw_wakers"]
SNAPSHOTS = BY_NAME["raw_snapshots"]
CPU_SECONDS = BY_NAME["raw_cpu_seconds"]
GPU_SAMPLES = BY_NAME["raw_gpu_samples"]
SCHEDULING = BY_NAME["raw_scheduling"]
CGROUP_THROTTLING = BY_NAME["raw_cgroup_throttling"]
DROPS = BY_NAME["raw_drops"]
PRUNED = BY_NAME["raw_pruned"]
IN_FLIGHT = BY_NAME["raw_in_flight"]
HALTS = BY_NAME["raw_halts"]
SAMPLES = BY_NAME["raw_stack_samples"]
PROBES = BY_NAME["raw_probes"]
OVERHEAD_LEVELS = BY_NAME["raw_overhead_levels"]
CGROUPS = BY_NAME["raw_cgroups"]
GPUS = BY_NAME["raw_gpus"]
PROCESS_GPUS = BY_NAME["raw_process_gpus"]
NUMA_NODES = BY_NAME["raw_numa_nodes"]
COMMUNICATORS = BY_NAME["raw_communicators"]
STACKS = BY_NAME["raw_stacks"]
INCIDENTS = BY_NAME["raw_incidents"]
CAUSAL_CHAINS = BY_NAME["raw_causal_chains"]
