"""Keeps a database under its size limit: detail goes first, oldest first; aggregates are folded; incidents stay."""

from __future__ import annotations

import apsw

from ingero.store.migrations import pragma
from ingero.store.vocabulary import CLOCK_COLUMNS

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS

# Aim below the limit, so that the work is done now and then and not at every commit.
TARGET_RATIO = 0.9

# Rows per step: about 0.1 s of deleting, which the recorder's queue bridges.
STEP_ROWS = 50_000

# The newest seconds keep their resolution while there is anything else to drop.
KEEP_SECONDS_NS = 10 * MINUTE_NS

# Folded at once; the caller's loop does the rest.
FOLD_STEP_NS = 10 * MINUTE_NS

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
        ("count", "errors", "nested", "recorded", "sum_ns", "bytes", *CLOCK_COLUMNS),
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


def enforce(db: apsw.Connection, max_bytes: int, *, is_over: bool) -> bool:
    """One bounded step towards the limit, its own transaction; true while there is more to do.

    max_bytes: 0 = no limit. is_over: what the last call answered (false at first). Work starts above the limit and goes
    on until `TARGET_RATIO` of it.
    """
    if max_bytes == 0 or used_bytes(db) <= max_bytes * (TARGET_RATIO if is_over else 1):
        return False
    newest = _number(db, "SELECT coalesce(max(start_ns), 0) FROM raw_op_stats")
    has_worked = False
    with db:
        has_worked = (
            _fold_seconds(db, newest - KEEP_SECONDS_NS)
            or _delete_oldest(db, _DETAIL)
            or _fold_seconds(db, newest)
            or _delete_oldest(db, _AGGREGATES)
        )
    return has_worked  # noqa: RET504  # returning inside: for mypy apsw's `with` may swallow exceptions


def _number(db: apsw.Connection, sql: str, *values: int) -> int:
    (value,) = next(iter(db.execute(sql, values)))
    assert isinstance(value, int)
    return value


def _fold_seconds(db: apsw.Connection, before_ns: int) -> bool:
    """Fold rows of one second into rows of one minute, for the oldest minutes that have ended by `before_ns`."""
    has_folded = False
    end_ns = before_ns // MINUTE_NS * MINUTE_NS
    for table, fold in _FOLDED.items():
        oldest = _number(
            db, f"SELECT coalesce(min(start_ns), ?1) FROM {table} WHERE period_s < 60 AND start_ns < ?1", end_ns
        )
        begin_ns = oldest // MINUTE_NS * MINUTE_NS
        if begin_ns < end_ns:
            _fold(db, table, fold, begin_ns, min(end_ns, begin_ns + FOLD_STEP_NS))
            has_folded = True
    return has_folded


def _fold(db: apsw.Connection, table: str, fold: _Fold, begin_ns: int, end_ns: int) -> None:
    keys, sums, maxima = fold
    columns = ", ".join(("start_ns", "period_s", *keys, *sums, *maxima))
    minute = f"start_ns / {MINUTE_NS} * {MINUTE_NS}"
    values = ", ".join((minute, "60", *keys, *(f"sum({n})" for n in sums), *(f"max({n})" for n in maxima)))
    where = "start_ns >= ? AND start_ns < ? AND period_s < 60"
    db.execute(
        f"CREATE TEMP TABLE folded AS SELECT {values} FROM {table} WHERE {where} GROUP BY {minute}, {', '.join(keys)}",
        (begin_ns, end_ns),
    )
    db.execute(f"DELETE FROM {table} WHERE {where}", (begin_ns, end_ns))
    db.execute(f"INSERT INTO {table}({columns}) SELECT * FROM temp.folded")
    db.execute("DROP TABLE temp.folded")


def _delete_oldest(db: apsw.Connection, tables: tuple[tuple[str, str], ...]) -> bool:
    """Delete up to `STEP_ROWS` rows of the largest table and, in the others, what is older than the rows deleted."""
    # Ids grow with time, so their span is the size; counting would read the whole table.
    spans = {name: _number(db, f"SELECT coalesce(max(id) - min(id) + 1, 0) FROM {name}") for name, _ in tables}
    largest, time = max(tables, key=lambda entry: spans[entry[0]])
    if not spans[largest]:
        return False
    oldest = f"SELECT {time} FROM {largest} ORDER BY {time} LIMIT ?"
    cutoff = _number(db, f"SELECT max({time}) FROM ({oldest})", STEP_ROWS)
    for name, column in tables:
        db.execute(f"DELETE FROM {name} WHERE {column} <= ?", (cutoff,))
    return True
