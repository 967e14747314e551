"""Writes a scripted recording through the real writer: its session, processes, texts and stacks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ingero.demo.scripted_steps import BEGIN_NS, Actor
from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.tables import Row, Table, Value
from ingero.store.writing.writer import Writer
from ingero.units import SECOND_NS

AGENT_PID = 77
_FLUSH_ROWS = 20_000


class ScriptedRecording:
    """Writes one recording, whose rows are stored as the recorder would store them."""

    def __init__(
        self,
        path: Path,
        *,
        seconds: float,
        not_traced: Mapping[str, str] | None = None,
        options: Mapping[str, str | int | float | bool | None] | None = None,
        seed: int = 1,
        node: str = "demo",
        machine_id: str = "",
        boot_id: str = "",
        cpu_count: int = 4,
    ):
        self.path = path
        self._end_ns = BEGIN_NS + int(seconds * SECOND_NS)
        facts = SessionFacts(
            uuid=f"demo-{path.stem}-{node}-{seed}",
            started_ns=BEGIN_NS,
            machine_id=machine_id,
            boot_id=boot_id,
            cpu_count=cpu_count,
            not_traced=dict(not_traced or {}),
            options=dict(options or {}),
            ingero_ver="demo",
            agent_pid=AGENT_PID,
        )
        self._writer = Writer(path, session=facts, node=node, clock=lambda: self._end_ns)
        self._random = np.random.default_rng(seed)
        self._appended = 0
        self._threads: set[int] = set()
        self._stacks: set[int] = set()

    def at(self, seconds: float) -> int:
        """The unix time (ns) of a time of the run (seconds since its start)."""
        return BEGIN_NS + int(seconds * SECOND_NS)

    def text(self, text: str) -> int:
        """The number of an interned text."""
        return self._writer.intern(text)

    def append(self, table: Table, count: int = 1, /, **columns: tables.Column) -> None:
        """Writes `count` rows of a table; the column `session` is filled in."""
        if "session" in table.columns:
            columns.setdefault("session", self._writer.session)
        self._rows(table, table.rows(count, **columns))

    def _rows(self, table: Table, rows: Sequence[Row]) -> None:
        self._writer.append(table, rows)
        self._appended += len(rows)
        if self._appended >= _FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Stores the rows written so far, so that readers see them."""
        self._writer.flush()
        self._appended = 0

    def process(
        self, pid: int, name: str, *, parent: Actor | None = None, start_s: float = -3600, **columns: Value
    ) -> Actor:
        """Writes a traced process that started at start_s, by default an hour before the recording."""
        number = self._writer.process_id(pid, self.at(start_s))
        self.append(
            tables.PROCESSES,
            process=number,
            pid=pid,
            start_ns=self.at(start_s),
            name=name,
            parent_pid=parent.pid if parent else 1,
            first_seen_ns=BEGIN_NS,
            last_seen_ns=self._end_ns,
            **columns,
        )
        self._thread(number, pid, name)
        return Actor(number=number, pid=pid, name=name)

    def _thread(self, process: int, tid: int, name: str) -> None:
        """Writes a thread with its name, unless it is written already."""
        if tid not in self._threads:
            self._threads.add(tid)
            self.append(tables.THREADS, process=process, tid=tid, name=name)

    def stack(self, frames: Sequence[tuple[str, int, str]], *, native: Sequence[str] = ()) -> int:
        """The number of a stack of Python frames (file, line, function), innermost first.

        native: native functions that they called, of libc or of a named library: `libcuda.so.1:cuModuleLoadData`.
        """
        number = self.text(f"stack {frames} {native}")
        if number not in self._stacks:
            self._stacks.add(number)
            stored: list[dict[str, str | int]] = [
                {"symbol": one.rpartition(":")[2], "file": one.rpartition(":")[0] or "libc.so.6"} for one in native
            ]
            stored += [{"py_file": file, "py_line": line, "py_func": function} for file, line, function in frames]
            self.append(tables.STACKS, hash=number, ips="[]", frames=json.dumps(stored))
        return number
