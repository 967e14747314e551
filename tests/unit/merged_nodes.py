"""Recordings to be merged: a file with a row in every table, and small nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

from ingero.demo.scenarios.scripts import take_cpu
from ingero.demo.scene import ScriptedRun, Step
from ingero.store.merge.rows import string_columns
from ingero.store.opening.own_schema import own_columns
from ingero.store.sql_text import Value
from ingero.store.writing.migrations import migrate

ROWS = 3  # in a table
PID, GROUP, STACK = 100, 77, -5  # the same on every node
BEGIN_NS = 1_790_000_000_000_000_000


def write_full(path: Path, node: str, *, machine_id: str = "", boot_id: str = "", uuid: str = "") -> None:
    """Writes a recording with rows in all tables, whose numbers are equal on all nodes."""
    db = apsw.Connection(str(path))
    migrate(db, path)
    strings: dict[str, int] = {}
    facts = {"node": node, "machine_id": machine_id, "boot_id": boot_id, "uuid": uuid or f"u-{node}"}
    tables = [name for name in own_columns() if name.startswith("raw_") and name not in {"raw_strings", "raw_sessions"}]
    insert(db, "raw_sessions", facts | {"session": 1, "started_ns": BEGIN_NS, "last_seen_ns": BEGIN_NS + 60 * 10**9})
    for table in tables:
        keys = {name for name, key in db.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)) if key}
        for row in range(1 if keys == {"process"} and table != "raw_processes" else ROWS):
            values = dict(_values(db, table, row, node, strings))
            insert(db, table, values)
    for text, number in strings.items():
        insert(db, "raw_strings", {"string": number, "text": text})
    db.close()


def _values(
    db: apsw.Connection, table: str, row: int, node: str, strings: dict[str, int]
) -> Iterator[tuple[str, Value]]:
    known: dict[str, Value] = {
        "session": 1, "process": row + 1 if table == "raw_processes" else 1, "pid": PID, "tid": PID, "node": node,
        "cgroup_id": GROUP, "kernel_cgroup_id": GROUP, "culprit_cgroup_id": GROUP, "stack_hash": STACK, "seq_base": 0,
        "source": (1, 9, 3)[row], "op": 3, "start_ns": BEGIN_NS + row, "sync_end_ns": BEGIN_NS + row,
        "time_ns": BEGIN_NS + row,
        "affected": f'[{{"process":1,"pid":{PID},"name":"{node}"}}]', "cpus": "[[0,1,1,1,1,1]]", "period_s": 1.0,
        "incident": row + 1, "is_traced": 1,
    }  # fmt: skip
    for name, kind, key in db.execute("SELECT name, type, pk FROM pragma_table_info(?)", (table,)):
        if name == "id":
            continue
        if name in string_columns().get(table, ()):
            yield name, strings.setdefault(f"{node} {table}.{name} {row % 2}", len(strings) + 1)
        elif table == "raw_cgroups" and name in {"cgroup_id", "kernel_cgroup_id"}:
            yield name, GROUP + row
        elif table == "raw_stacks" and name == "hash":
            yield name, STACK - row
        elif name in known:
            yield name, known[name]
        elif kind == "TEXT":
            yield name, f"{table}.{name} {row}" if key or table == "raw_stacks" else f"{node}.{name}"
        elif kind == "REAL":
            yield name, row + 0.5
        elif kind == "BLOB":
            yield name, node.encode()
        else:
            yield name, row + 1


def insert(db: apsw.Connection, table: str, values: dict[str, Value]) -> None:
    """Inserts one row."""
    marks = ", ".join("?" * len(values))
    db.execute(f"INSERT INTO {table}({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def write_node(path: Path, node: str, *, is_slow: bool = False, machine_id: str = "", name: str = "train") -> None:
    """Writes ten seconds of training by process 100; on a slow node a backup takes its CPUs for some of them."""
    with ScriptedRun(path, seconds=10, node=node, machine_id=machine_id) as run:
        trainer = run.process(PID, name)
        run.train(trainer, 0, 4, Step())
        if is_slow:
            late = Step(return_delay_ms=37.05, sync={"runq": 37.0})
            calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaStreamSynchronize": (1.0, 42.0)}
            take_cpu(run, trainer, run.train(trainer, 4, 9, late, calls=calls), 37.0, [(4711, "backup")])
        else:
            run.train(trainer, 4, 9, Step())
        run.train(trainer, 9, 10, Step())
