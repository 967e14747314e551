"""What cannot be asked of many nodes, and why."""

from __future__ import annotations

from typing import ClassVar

from ingero.program import command
from ingero.store.user_sql.errors import SqlError


class NotSplitError(Exception):
    """Why nodes cannot do a part of a statement each. Never leaves this package: the rows are fetched instead."""


class TooManyRowsError(SqlError):
    """More rows would have to be fetched than this may take."""

    kind: ClassVar[str] = "too many rows"

    def __init__(self, detail: str, reason: str) -> None:
        why = f", because {reason}" if reason else ""
        super().__init__(
            f"{detail}{why}",
            hint=f"take less of it, e.g. with WHERE timestamp > ..., or merge the recordings first: {command('merge')}",
        )


class NodeAnswerError(Exception):
    """What a node sent is no answer to what it was asked."""
