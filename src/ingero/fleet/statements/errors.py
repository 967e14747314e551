"""Errors of statements over many nodes."""

from __future__ import annotations

from typing import ClassVar

from ingero.program import command
from ingero.store.user_sql.errors import SqlError


class NotSplitError(Exception):
    """A statement cannot be split among nodes. Never leaves this package: rows are fetched instead."""


class TooManyRowsError(SqlError):
    """The statement needs more rows than may be fetched."""

    kind: ClassVar[str] = "too many rows"

    def __init__(self, detail: str, reason: str) -> None:
        why = f", because {reason}" if reason else ""
        super().__init__(
            f"{detail}{why}",
            hint=f"take less of it, e.g. with WHERE timestamp > ..., or merge the recordings first: {command('merge')}",
        )


class NodeAnswerError(Exception):
    """A node's reply is no valid answer to its question."""
