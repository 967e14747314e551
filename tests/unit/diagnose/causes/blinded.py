"""Removes a source from a recording as if it had not been traced: its rows are gone, and the session says so."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from ingero.events import STATES
from ingero.ops import Source

_SCHEDULER = ("offcpu", "culprits", "wakers", "thread_state_seconds", "scheduling")
_TOGETHER: Mapping[str, tuple[str, ...]] = {"thread_state_seconds": _SCHEDULER, "copies": ("copies", "enqueues")}
_TABLES: Mapping[str, tuple[str, ...]] = {
    "sync_intervals": ("sync_intervals", "sync_interval_digest"),
    "offcpu": ("offcpu", "wakers"),
    "thread_state_seconds": _SCHEDULER,
    "stack_samples": ("stack_samples",),
    "gpu_samples": ("gpu_samples",),
    "GPU": ("gpu_samples",),
    "which GPU": ("process_gpus", "gpu_samples"),
    "allocations": ("allocations", "memory_seconds"),
    "op_stats": ("op_stats", "call_sites"),
    "launches": ("op_stats",),
    "copies": ("op_stats",),
    "enqueues": (),
    "launch_times": ("op_stats",),
    "allocation_times": ("op_stats",),
    "NCCL": ("communicators",),
    "raw_cgroups": ("cgroups",),
}


def without(path: Path, name: str) -> Path:
    """A copy of a recording for which this table or source of `diagnose.evidence` was not traced."""
    copy = path.with_name(f"{path.stem} without {name}.db")
    shutil.copy(path, copy)
    with sqlite3.connect(copy) as database:
        for table in _TABLES.get(name, () if name in Source.__members__ else (name,)):
            database.execute(f"DELETE FROM raw_{table}")
        if name in Source.__members__:
            for table in ("events", "in_flight"):
                database.execute(f"DELETE FROM raw_{table} WHERE source = ?", (int(Source[name]),))
        if further := _FURTHER.get(name):
            further(database)
        gone = dict.fromkeys(_TOGETHER.get(name, (name,)), "switched off")
        not_traced = json.loads(database.execute("SELECT not_traced FROM raw_sessions").fetchone()[0])
        database.execute("UPDATE raw_sessions SET not_traced = ?", (json.dumps(not_traced | gone),))
    database.close()
    return copy


def _no_clocks(database: sqlite3.Connection) -> None:
    """Without the scheduler no sync interval has clocks."""
    names = [row[1] for row in database.execute("PRAGMA table_info(raw_sync_intervals)")]
    clocks = [
        name
        for name in names
        if name.count("_") > 1
        and name.startswith(("idle_", "launch_", "sync_"))
        and name.endswith(tuple(f"_{state}_ns" for state in STATES))
    ]
    database.execute(f"UPDATE raw_sync_intervals SET {', '.join(f'{name} = NULL' for name in clocks)}")


def _no_stacks(database: sqlite3.Connection) -> None:
    """Samples and stacks are switched off together."""
    for table in ("events", "allocations", "in_flight"):
        database.execute(f"UPDATE raw_{table} SET stack_hash = 0")


_FURTHER: Mapping[str, Callable[[sqlite3.Connection], None]] = {
    "thread_state_seconds": _no_clocks,
    "stack_samples": _no_stacks,
}
