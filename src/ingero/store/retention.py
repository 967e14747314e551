"""Keeps a database under its size limit: detail goes first, oldest first; aggregates are folded; incidents stay."""

from __future__ import annotations

import time
from collections.abc import Callable

import apsw

from ingero.store.migrations import pragma
from ingero.store.vocabulary import CLOCK_COLUMNS

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS

# Begin before the limit is passed, since the rows of the next commit come on top, and aim below it, so that the work is
# done now and then and not at every commit.
START_RATIO, TARGET_RATIO = 0.95, 0.9

# Steps are as large as takes so long: the recorder writes nothing meanwhile, and must not wait for 0.1 s.
STEP_NS = 20_000_000
FIRST_STEP_ROWS, MIN_STEP_ROWS, MAX_STEP_ROWS = 2_000, 100, 50_000

# The newest seconds keep their resolution while there is anything else to drop.
KEEP_SECONDS_NS = 10 * MINUTE_NS

_DETAIL = (("raw_events", "start_ns"), ("raw_offcpu", "start_ns"), ("raw_in_flight", "time_ns"))
_AGGREGATES = (
    ("raw_epochs", "b_ns"),
    ("raw_snapshots", "time_ns"),
    ("raw_kernel_launches", "start_ns"),
    ("raw_wakers", "start_ns"),
    ("raw_cgroup_throttling", "start_ns"),
    ("raw_culprits", "start_ns"),
    ("raw_clock_seconds", "start_ns"),
    ("raw_op_stats", "start_ns"),
    ("raw_call_sites", "start_ns"),
)

# Per folded table: what stays apart, what is summed, what takes the maximum.
_Fold = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
_FOLDED: dict[str, _Fold] = {
    "raw_op_stats": (
        ("session", "process", "source", "op", "library"),
        ("count", "errors", "nested", "untimed", "recorded", "sum_ns", "bytes", *CLOCK_COLUMNS),
        ("max_ns",),
    ),
    "raw_kernel_launches": (("session", "process", "function", "kernel_name"), ("count",), ()),
    "raw_clock_seconds": (("session", "process"), (*CLOCK_COLUMNS, "switches", "preemptions"), ("threads",)),
    "raw_culprits": (
        ("session", "process", "kind", "culprit_pid", "culprit_name", "culprit_cgroup_id"),
        ("ns", "switches"),
        (),
    ),
    "raw_wakers": (
        ("session", "process", "waker_kind", "waker_pid", "waker_tid", "waker_name"),
        ("count", "sleep_ns"),
        (),
    ),
    "raw_cgroup_throttling": (("session", "cgroup_id"), ("nr_throttled", "throttled_ns"), ()),
}


def used_bytes(db: apsw.Connection) -> int:
    """Bytes of the database that hold something; freed pages are used again and do not count."""
    return (pragma(db, "page_count") - pragma(db, "freelist_count")) * pragma(db, "page_size")


class Trimmer:
    """Keeps one database under its limit by steps of about `STEP_NS`. max_bytes: 0 = no limit. clock: monotonic ns."""

    def __init__(self, db: apsw.Connection, max_bytes: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._db, self._max_bytes, self._clock = db, max_bytes, clock
        self.step_rows = FIRST_STEP_ROWS
        self._is_over = False
        self._folded_ns: dict[str, int] = {}  # by table: nothing older is left to fold

    @property
    def is_past_limit(self) -> bool:
        """Whether the database is larger than it may be."""
        return self._max_bytes != 0 and used_bytes(self._db) > self._max_bytes

    def step(self) -> bool:
        """One step towards the limit, its own transaction; true while there is more to do."""
        ratio = TARGET_RATIO if self._is_over else START_RATIO
        if self._max_bytes == 0 or used_bytes(self._db) <= self._max_bytes * ratio:
            self._is_over = False
            return False
        begin_ns = self._clock()
        self._is_over = self._trim(self.step_rows)
        elapsed_ns = self._clock() - begin_ns
        if elapsed_ns > STEP_NS:
            self.step_rows = max(MIN_STEP_ROWS, self.step_rows // 2)
        elif 2 * elapsed_ns < STEP_NS:
            self.step_rows = min(MAX_STEP_ROWS, self.step_rows * 2)
        return self._is_over

    def _trim(self, rows: int) -> bool:
        """Fold or delete about `rows` rows; false where nothing is left to go."""
        db = self._db
        newest = _number(db, "SELECT coalesce(max(start_ns), 0) FROM raw_op_stats")
        has_worked = False
        with db:
            has_worked = (
                self.fold_seconds(newest - KEEP_SECONDS_NS, rows)
                or _delete_oldest(db, _DETAIL, rows)
                or self.fold_seconds(newest, rows)
                or _delete_oldest(db, _AGGREGATES, rows)
            )
        return has_worked  # noqa: RET504  # returning inside: for mypy apsw's `with` may swallow exceptions

    def fold_seconds(self, before_ns: int, rows: int) -> bool:
        """Fold rows of one second into rows of one minute: of the oldest minute of one table, ended by `before_ns`."""
        end_ns = before_ns // MINUTE_NS * MINUTE_NS
        for table, fold in _FOLDED.items():
            oldest = _number(
                self._db,
                f"SELECT coalesce(min(start_ns), ?1) FROM {table} "
                "WHERE period_s < 60 AND start_ns < ?1 AND start_ns >= ?2",
                end_ns,
                self._folded_ns.get(table, 0),
            )
            begin_ns = oldest // MINUTE_NS * MINUTE_NS
            self._folded_ns[table] = max(begin_ns, self._folded_ns.get(table, 0))
            if begin_ns < end_ns:
                _fold(self._db, table, fold, begin_ns, rows)
                return True
        return False


def _number(db: apsw.Connection, sql: str, *values: int) -> int:
    (value,) = next(iter(db.execute(sql, values)))
    assert isinstance(value, int)
    return value


def _fold(db: apsw.Connection, table: str, fold: _Fold, begin_ns: int, rows: int) -> None:
    """Up to `rows` rows of one minute; of a fuller minute several rows may share a key, which readers sum."""
    keys, sums, maxima = fold
    columns = ", ".join(("start_ns", "period_s", *keys, *sums, *maxima))
    minute = f"start_ns / {MINUTE_NS} * {MINUTE_NS}"
    values = ", ".join((minute, "60", *keys, *(f"sum({n})" for n in sums), *(f"max({n})" for n in maxima)))
    db.execute(
        f"CREATE TEMP TABLE chosen AS SELECT id FROM {table} WHERE start_ns >= ? AND start_ns < ? AND period_s < 60 "
        "ORDER BY start_ns LIMIT ?",
        (begin_ns, begin_ns + MINUTE_NS, rows),
    )
    where = "id IN (SELECT id FROM temp.chosen)"
    db.execute(
        f"CREATE TEMP TABLE folded AS SELECT {values} FROM {table} WHERE {where} GROUP BY {minute}, {', '.join(keys)}"
    )
    db.execute(f"DELETE FROM {table} WHERE {where}")
    db.execute(f"INSERT INTO {table}({columns}) SELECT * FROM temp.folded")
    db.execute("DROP TABLE temp.folded")
    db.execute("DROP TABLE temp.chosen")


def _delete_oldest(db: apsw.Connection, tables: tuple[tuple[str, str], ...], rows: int) -> bool:
    """Delete up to `rows` rows of the largest table and as many, of those that are as old, in each of the others."""
    # Ids grow with time, so their span is the size. Counting would read the whole table, and so would max and min in
    # one query: SQLite looks up only a single one of them.
    span = "SELECT coalesce((SELECT max(id) FROM {0}) - (SELECT min(id) FROM {0}) + 1, 0)"
    spans = {name: _number(db, span.format(name)) for name, _ in tables}
    largest, largest_time = max(tables, key=lambda entry: spans[entry[0]])
    if not spans[largest]:
        return False
    oldest = f"SELECT {largest_time} AS t FROM {largest} ORDER BY {largest_time} LIMIT ?"
    cutoff = _number(db, f"SELECT max(t) FROM ({oldest})", rows)
    for name, column in tables:
        chosen = f"SELECT id FROM {name} WHERE {column} <= ? ORDER BY {column} LIMIT ?"
        db.execute(f"DELETE FROM {name} WHERE id IN ({chosen})", (cutoff, rows))
    return True
