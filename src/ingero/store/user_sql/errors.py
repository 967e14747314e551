"""Errors of users' statements, each with a hint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ingero.errors import IngeroError

EXAMPLE = 'ingero query "SELECT * FROM op_stats LIMIT 10"'


class SqlError(IngeroError):
    """Base of every error of users' SQL.

    kind: a word for programs; the same situation always has the same.
    """

    kind: ClassVar[str] = "error"


class SqlRefusedError(SqlError):
    """The statement would write, or read unpublished data."""

    kind: ClassVar[str] = "refused"


class SqlSyntaxError(SqlError):
    """SQLite does not understand the statement."""

    kind: ClassVar[str] = "syntax"

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"SQLite does not understand this: {detail}",
            hint=f"texts go in single quotes; one that works: {EXAMPLE}",
        )


class UnknownTableError(SqlError):
    """There is no such view or table."""

    kind: ClassVar[str] = "no such table"

    def __init__(self, name: str, near: Iterable[str], published: Iterable[str]) -> None:
        meant = _meant(near)
        super().__init__(f"there is no table {name}{meant}", hint=f"ask one of {', '.join(published)}")


class UnknownColumnError(SqlError):
    """None of the views asked has such a column."""

    kind: ClassVar[str] = "no such column"

    def __init__(self, name: str, near: Iterable[str], columns: Iterable[str]) -> None:
        super().__init__(f"there is no column {name}{_meant(near)}", hint=f"the columns are {', '.join(columns)}")


class TimeLimitError(SqlError):
    """The statement took too long."""

    kind: ClassVar[str] = "time limit"

    def __init__(self, timeout_s: float, way_out: str = "") -> None:
        super().__init__(
            f"the statement was stopped after {timeout_s:g} s",
            hint=f"ask for less, e.g. WHERE timestamp > (SELECT max(timestamp) FROM events) - 60e9{way_out}",
        )


class SizeLimitError(SqlError):
    """A value, the answer or the memory needed to compute it is too large."""

    kind: ClassVar[str] = "size limit"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, hint="select fewer columns or rows, or group them")


def _meant(near: Iterable[str]) -> str:
    names = list(near)
    return f"; did you mean {' or '.join(names)}?" if names else ""
