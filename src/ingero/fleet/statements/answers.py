"""Questions to a node, its answers, and the check that an answer is valid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ingero.fleet.statements.errors import NodeAnswerError
from ingero.store.sql_text import Row

MAX_ROWS = 1_000_000  # of all nodes together, for one question
MAX_BYTES = 128 << 20  # of all nodes together, for one statement: SQLite holds them in memory, which has a limit

_MOST = 1 << 63
_MAX_VALUE_BYTES = 1 << 20  # as in a node's own answer
_NULL_BYTES = 16  # size of a value besides its text

NodeRows: TypeAlias = "Sequence[Sequence[object]]"
"""The rows of one node for one question, as they came."""

Answers: TypeAlias = "Mapping[str, Sequence[NodeRows]]"
"""By node, its rows for each question of the plan in the plan's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One SELECT that each node runs. max_rows: most rows that a node may answer; the SELECT has it as LIMIT.

    counts: columns that hold counts, which are never negative.
    """

    sql: str
    columns: tuple[str, ...]
    max_rows: int
    counts: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One answer of all nodes.

    nodes: the nodes whose rows are in it. refused: why a node's rows are not, by node. truncated: nodes with more rows
    than these, which is only possible for lists of rows: a total is never made of a part. is_truncated: there are more
    rows. notes: what to know about it.
    """

    columns: tuple[str, ...]
    rows: list[Row]
    nodes: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    truncated: tuple[str, ...] = ()
    is_truncated: bool = False
    notes: tuple[str, ...] = ()


def checked(question: Question, rows: NodeRows) -> tuple[list[Row], int]:
    """The checked rows of one node, with values of SQLite's types, and their size in bytes.

    Raises:
        NodeAnswerError: they are not what such a question is answered with.
    """
    if not isinstance(rows, list | tuple):
        raise NodeAnswerError("its rows are not a list")
    if len(rows) > question.max_rows + 1:
        raise NodeAnswerError(f"it sent {len(rows):,} rows where {question.max_rows + 1:,} were asked for")
    found: list[Row] = []
    size_bytes = 0
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != len(question.columns):
            raise NodeAnswerError(f"it sent a row that does not have {len(question.columns)} columns")
        for place, value in enumerate(row):
            size_bytes += _size_bytes(value)
            if place in question.counts and not (isinstance(value, int) and value >= 0):
                raise NodeAnswerError("it sent an invalid count")
        found.append(tuple(row))
    return found, size_bytes


def _size_bytes(value: object) -> int:
    if value is None or type(value) is float:
        return _NULL_BYTES
    if type(value) is int:
        if -_MOST <= value < _MOST:
            return _NULL_BYTES
        raise NodeAnswerError("it sent an integer of more than 64 bits")
    if type(value) in {str, bytes}:
        assert isinstance(value, str | bytes)
        if len(value) > _MAX_VALUE_BYTES:
            raise NodeAnswerError("it sent a value of more than 1 MiB")
        if isinstance(value, str) and not _is_unicode(value):
            raise NodeAnswerError("it sent text that is not Unicode")
        return len(value) + _NULL_BYTES
    raise NodeAnswerError(f"it sent a value of type {type(value).__name__}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON can hold
        return False
    return True
