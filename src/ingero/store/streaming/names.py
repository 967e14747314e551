"""Looks up texts and kernels that rows refer to by number, with a bounded cache."""

from __future__ import annotations

from functools import lru_cache

from ingero.store.reader import Reader
from ingero.store.reader.questions import fields_of, records
from ingero.store.records import Communicator, Stack

_KEPT_NAMES = 1 << 16
_KEPT_STACKS = 1 << 12


class Names:
    """Looks up what rows refer to by number. Answers are cached until too many others were asked for."""

    def __init__(self, reader: Reader) -> None:
        self._db = reader.connection
        self._reader = reader
        self.ops: dict[tuple[int, int], str] = {
            (source, op): name for source, op, name in self._db.execute("SELECT source_id, op_id, name FROM ops")
        }
        self.number = lru_cache(_KEPT_NAMES)(self._number)
        self.kernels = lru_cache(_KEPT_NAMES)(self._kernels)
        self.thread = lru_cache(_KEPT_NAMES)(self._thread)
        self.process_of_thread = lru_cache(_KEPT_NAMES)(self._process_of_thread)
        self.stack = lru_cache(_KEPT_STACKS)(self._stack)
        self.communicators = lru_cache(_KEPT_STACKS)(self._communicators)

    def text(self, value: int | str | None) -> str:
        """The text of a column that says "string"; "" for none."""
        if not value:
            return ""
        return value if isinstance(value, str) else self.number(value)

    def kernel(self, process: int, function: int, at_ns: int) -> str:
        """The GPU kernel of a function handle at a time; "" if not known."""
        return next((name for since_ns, name in self.kernels(process, function) if since_ns <= at_ns), "")

    def _number(self, string: int) -> str:
        return self._one("SELECT text FROM raw_strings WHERE string = ?", string)

    def _kernels(self, process: int, function: int) -> tuple[tuple[int, str], ...]:
        """The kernels of a function handle, newest first."""
        rows = self._db.execute(
            "SELECT since_ns, coalesce(name, '') FROM raw_kernels WHERE process = ? AND function = ? "
            "ORDER BY generation DESC",
            (process, function),
        )
        return tuple((since_ns, name) for since_ns, name in rows)

    def _thread(self, process: int, tid: int) -> str:
        return self._one(
            "SELECT name FROM raw_threads WHERE process = ? AND tid = ? ORDER BY start_ns DESC LIMIT 1", process, tid
        )

    def _process_of_thread(self, session: int, tid: int) -> int:
        """The traced process of a thread, 0: none. Of several that a number was used for, the last."""
        rows = self._db.execute(
            "SELECT t.process FROM raw_threads t JOIN raw_processes p ON p.process = t.process "
            "WHERE t.tid = ? AND p.session = ? ORDER BY t.start_ns DESC LIMIT 1",
            (tid, session),
        )
        return next((int(row[0]) for row in rows), 0)

    def _stack(self, stack_hash: int) -> Stack | None:
        found = self._reader.stacks([stack_hash]) if stack_hash else []
        return found[0] if found else None

    def _communicators(self, process: int) -> tuple[Communicator, ...]:
        rows = self._db.execute(
            f"SELECT {fields_of(Communicator)} FROM raw_communicators WHERE process = ? ORDER BY number DESC",
            (process,),
        )
        return tuple(records(Communicator, rows))

    def _one(self, sql: str, *values: int) -> str:
        return next((str(row[0]) for row in self._db.execute(sql, values)), "")
