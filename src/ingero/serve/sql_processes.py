"""Runs clients' SQL in processes that can be killed: no statement exceeds its time or memory."""

from __future__ import annotations

import queue
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingero.errors import IngeroError
from ingero.sandbox import rights
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import WAITED_S, Nursery, ProcessKind, Task
from ingero.sandbox.process import NoAnswerError, RefusedAnswerError, SandboxedProcess

if TYPE_CHECKING:
    from ingero.serve.sql import Answer

_PROCESSES = 3  # statements at a time; others wait, and their time runs
_MEMORY_BYTES = 160 << 20  # of each: three take less than 512 MB
_FILE_BYTES = 2 << 30  # temporary files in which SQLite sorts
_LATER_S = 0.7  # after the limit: SQLite looks at the clock itself, and its own answer says more
_KIND = "sql"
_AnswerFields = tuple[list[str], list[list[Any]], bool, int, list[str]]  # the fields of Answer


class SqlProcesses:
    """Use as a context manager, entered before threads are started. Threads may share it."""

    def __init__(self) -> None:
        kind = ProcessKind(
            name="ingero-sql",
            tasks=_tasks,
            capabilities=rights.ALL,  # the recording is the server's to read, and the guard lets no statement read more
            memory_bytes=_MEMORY_BYTES,
            file_bytes=_FILE_BYTES,
            is_nobody=False,
        )
        self._nursery = Nursery({_KIND: kind}, prepare=_tasks)  # what it imports, this process may do without
        self._free: queue.LifoQueue[SandboxedProcess] = queue.LifoQueue()  # the last one is warm

    def __enter__(self) -> SqlProcesses:
        self._nursery.__enter__()
        for _ in range(_PROCESSES):
            self._free.put(SandboxedProcess(self._nursery, _KIND))
        return self

    def __exit__(self, *_: object) -> None:
        while not self._free.empty():
            self._free.get().close()
        self._nursery.__exit__()

    def run(self, path: Path, sql: str, *, max_rows: int, timeout_s: float) -> Answer:
        """As `run_sql`."""
        import msgspec  # noqa: PLC0415  # as are SQLite and what knows it: not before somebody asks

        from ingero.serve.sql import Answer  # noqa: PLC0415  # as above

        reply = self._ask("run", {"path": str(path), "sql": sql, "max_rows": max_rows}, timeout_s)
        columns, rows, is_truncated, elapsed_ns, notes = msgspec.msgpack.decode(reply.data, type=_AnswerFields)
        return Answer(
            columns=tuple(columns),
            rows=list(map(tuple, rows)),
            is_truncated=is_truncated,
            elapsed_ns=elapsed_ns,
            notes=tuple(notes),
        )

    def fitting(self, path: Path, sql: str, limit: int, *, timeout_s: float) -> dict[str, Any]:
        """As `sql_answer` of `serve/mcp/rows.py`."""
        answer = self._ask("fitting", {"path": str(path), "sql": sql, "limit": limit}, timeout_s).content
        del answer[WAITED_S]
        return answer

    def _ask(self, task: str, content: dict[str, Any], timeout_s: float) -> Message:
        from ingero.store.user_sql.errors import SizeLimitError, TimeLimitError  # noqa: PLC0415  # as above

        until_s = time.monotonic() + timeout_s
        try:
            process = self._free.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeLimitError(timeout_s, "; others are asking as well") from None
        try:
            left_s = max(until_s - time.monotonic(), 0.1)
            content["timeout_s"] = left_s
            return process.ask(task, content, cpu_s=left_s + _LATER_S, wall_s=left_s + _LATER_S)
        except NoAnswerError as error:
            if time.monotonic() >= until_s:
                raise TimeLimitError(timeout_s) from None
            raise SizeLimitError(f"the statement was ended: {error.reason}") from None
        except RefusedAnswerError as error:
            raise _as_there(error) from None
        finally:
            self._free.put(process)


def _as_there(error: RefusedAnswerError) -> IngeroError:
    """The exception that was raised in the process."""
    from ingero.store import errors  # noqa: PLC0415  # as above
    from ingero.store.user_sql import errors as sql_errors  # noqa: PLC0415  # as above

    found = getattr(sql_errors, error.kind, None) or getattr(errors, error.kind, None)
    if isinstance(found, type) and issubclass(found, IngeroError):
        raised = found.__new__(found)
        IngeroError.__init__(raised, error.reason, hint=error.hint_given)
        return raised
    if not error.kind:  # there was no room for it
        return sql_errors.SizeLimitError("the statement needs more memory than there is")
    return sql_errors.SqlError(f"the statement cannot be answered: {error.reason}")


def _tasks() -> Mapping[str, Task]:
    import msgspec  # noqa: PLC0415  # only in the processes

    from ingero.serve.mcp.rows import sql_answer  # noqa: PLC0415  # as above
    from ingero.serve.sql import run_sql  # noqa: PLC0415  # as above

    def run(question: Message) -> Message:
        query = question.content
        answer = run_sql(Path(query["path"]), query["sql"], max_rows=query["max_rows"], timeout_s=query["timeout_s"])
        parts = (answer.columns, answer.rows, answer.is_truncated, answer.elapsed_ns, answer.notes)
        return Message({}, msgspec.msgpack.encode(parts))

    def fitting(question: Message) -> Message:
        query = question.content
        return Message(sql_answer(Path(query["path"]), query["sql"], query["limit"], timeout_s=query["timeout_s"]))

    return {"run": run, "fitting": fitting}
