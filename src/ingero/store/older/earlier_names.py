"""Names of tables, columns and causes in recordings of earlier builds, so that these can still be read.

Before the first release all names were changed to those of the field. A reader gets a temporary view of today's name,
with today's columns, in front of a table that has its earlier one; names of Ingero 0.x are in legacy.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import apsw

# Tables: today's name, earlier name.
TABLES: dict[str, str] = {
    "raw_drops": "raw_losses",
    "raw_overhead_levels": "raw_governor",
    "raw_pruned": "raw_removed",
    "raw_stack_samples": "raw_samples",
    "raw_sync_interval_digest": "raw_epoch_digest",
    "raw_sync_intervals": "raw_epochs",
    "raw_thread_state_seconds": "raw_clock_seconds",
    "sync_interval_flags": "epoch_flags",
}

TODAY: dict[str, str] = {earlier: today for today, earlier in TABLES.items()}

_STATES = ("run", "runq", "throttled", "yielded", "sleep", "io", "uninterruptible", "stopped")
_PARTS = {"idle": "empty", "launch": "enqueue", "sync": "drain"}

# Columns of any table: today's name, earlier name.
COLUMNS: dict[str, str] = {
    "prev_sync_end_ns": "a_ns",
    "first_launch_ns": "f_ns",
    "sync_start_ns": "s_ns",
    "gpu_done_ns": "r_ns",
    "gpu_done_low_ns": "r_low_ns",
    "gpu_done_high_ns": "r_high_ns",
    "sync_end_ns": "b_ns",
    "idle_ns": "e_ns",
    "busy_ns": "x_ns",
    "return_delay_ns": "p_ns",
    "prev_sync_tid": "a_tid",
    "first_launch_tid": "f_tid",
    "sync_tid": "b_tid",
    "step_type": "class_key",
    "step_types": "classes",
    "pid_filter": "targets",
    "involuntary_switches": "preemptions",
    "sync_intervals": "epochs",
    "is_traced": "is_target",
    "affected": "victims",
    "uninterruptible_ns": "kernel_lock_ns",
    "host_uninterruptible_ns": "host_kernel_lock_ns",
    "blocked_uninterruptible_ns": "blocked_kernel_lock_ns",
}
COLUMNS |= {
    f"{part}_{state}_ns": f"{earlier}_{'kernel_lock' if state == 'uninterruptible' else state}_ns"
    for part, earlier in _PARTS.items()
    for state in _STATES
}

_CAUSES = {
    "hidden-synchronisation": "unexpected-sync",
    "gpu-shared": "gpu-contention",
    "call-in-flight": "hung-call",
    "page-fault-storm": "major-page-faults",
    "network-file-wait": "network-filesystem-wait",
    "timer-sleep": "sleep-in-loop",
}
_BUCKETS = {
    '"empty.': '"idle.',
    '"enqueue.': '"launch.',
    '"late.': '"return_delay.',
    '"device.device"': '"gpu.gpu_execution"',
    '"device.': '"gpu.',
    '.kernel_lock"': '.uninterruptible"',
}


def find(db: apsw.Connection, table: str, wanted: Iterable[str], *, schema: str) -> tuple[str, dict[str, str]]:
    """Under which name a file holds one of today's tables, and which of its wanted columns it has: today's name, SQL.

    The name is empty and there are no columns if the file does not hold it. What else its columns are called is never
    a part of the SQL.
    """
    for stored in (table, TABLES.get(table, table)):
        rows = list(db.execute("SELECT name FROM pragma_table_info(?, ?)", (stored, schema)))
        if rows:
            columns = {str(name) for (name,) in rows}
            found = {name: _expression(table, name, columns) for name in wanted}
            return stored, {name: text for name, text in found.items() if text}
    return "", {}


def _expression(table: str, column: str, columns: Set[str]) -> str | None:
    """SQL for a column of today's table from the columns that a file's table has; None where they do not hold it."""
    if table == "raw_overhead_levels" and "rung" in columns:
        return {"level": "rung", "agent_level": "level"}.get(column, column if column in columns else None)
    if table == "raw_incidents" and "account" in columns:
        if column == "breakdown":
            return _replaced("account", _BUCKETS)
        if column == "cause":
            return _replaced("cause", _CAUSES)
    if column in columns:
        return column
    earlier = COLUMNS.get(column)
    return earlier if earlier in columns else None


def _replaced(column: str, words: Mapping[str, str]) -> str:
    text = column
    for earlier, today in words.items():
        text = f"replace({text}, '{earlier}', '{today}')"
    return text
