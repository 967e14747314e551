"""The statement behind `ingero query` without SQL: recorded calls and host events by time, process and operation."""

from __future__ import annotations

import difflib

from ingero.ops import Source, op_named
from ingero.program import command
from ingero.store.records import Window
from ingero.store.user_sql.errors import SqlError
from ingero.store.vocabulary import op_rows

_SHOWN = (
    "timestamp, pid, tid, comm, op_name AS op, duration_ns, runq_ns, culprit_name, ret_code, rank, gpu_id, kernel_name"
)


class UnknownOpError(SqlError):
    """No operation has this name."""

    kind = "no such operation"

    def __init__(self, name: str, near: list[str]) -> None:
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(
            f"no operation is called {name}{meant}", hint=command("query", "SELECT name, description FROM ops")
        )


def op_pair(name: str) -> tuple[Source, int]:
    """(source, op) of a call or host event by its name, in any case; short names of older versions are known, too.

    Raises:
        UnknownOpError: there is none.
    """
    known = op_named(name)
    if known is not None:
        return known.source, known.code
    pairs: dict[str, tuple[str, tuple[Source, int]]] = {}
    for source, code, title, _, _, _, _, aliases, _ in op_rows():
        for one in (title, *filter(None, aliases.split(","))):
            pairs[one.lower()] = (one, (Source(source), code))
    if name.lower() not in pairs:
        raise UnknownOpError(name, [pairs[near][0] for near in difflib.get_close_matches(name.lower(), pairs, n=2)])
    return pairs[name.lower()][1]


def event_filter_sql(
    *, window: Window | None, pid: int | None, op: tuple[Source, int] | None, all_columns: bool
) -> str:
    """Rows of events, newest first."""
    tests: list[str] = []
    if window is not None:
        tests.append(f"timestamp >= {window.begin_ns} AND timestamp < {window.end_ns}")
    if pid is not None:
        tests.append(f"pid = {pid}")
    if op is not None:
        tests.append(f"source = {int(op[0])} AND op = {op[1]}")
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    return f"SELECT {'*' if all_columns else _SHOWN} FROM events{where} ORDER BY timestamp DESC"
