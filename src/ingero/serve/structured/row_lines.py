"""Rows between hosts: a line of JSON that describes the answer, then one for each row; values are preserved exactly.

Integers keep their 64 bits, reals stay reals (`1.0`), blobs and what JSON has no number for are objects. Whoever reads
takes the other side for hostile: a line that is not what it should be ends the answer, and so does one too many.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from ingero.errors import IngeroError
from ingero.serve.sql import Answer
from ingero.store.sql_text import Row, Value

MEDIA_TYPE = "application/x-ndjson"
MAX_ROWS = 100_000  # of one answer: as many as its 16 MiB hold at all (serve/sql.py)
MAX_SECONDS = 60.0  # longest time of a statement on a node
MAX_COLUMNS = 200  # what the sandbox of SQL allows (store/user_sql/guard.py)
_MAX_INT = 2**63 - 1
_ROWS_AT_ONCE = 500
_BROKEN = "try again; if it persists, `ingero version` on both hosts"

_Int64 = Annotated[int, msgspec.Meta(ge=-_MAX_INT - 1, le=_MAX_INT)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT)]
_Text = Annotated[str, msgspec.Meta(max_length=4096)]
Type = Literal["integer", "real", "text", "blob", "mixed", ""]


class LinesError(IngeroError):
    """The bytes are no answer of a node."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a recording.

    nodes: names in it. machine_id: a hash, "" where it is not known or they are several. recording: the same for the
    same sessions, wherever they are asked for.
    """

    nodes: Annotated[list[_Text], msgspec.Meta(max_length=10_000)]
    machine_id: _Text
    recording: _Text


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of an answer. types: type of the values by column; "": all NULL."""

    node: Identity
    columns: Annotated[list[_Text], msgspec.Meta(max_length=MAX_COLUMNS)]
    types: Annotated[list[Type], msgspec.Meta(max_length=MAX_COLUMNS)]
    rows: _Count
    is_truncated: bool
    elapsed_ns: _Count
    notes: Annotated[list[_Text], msgspec.Meta(max_length=32)]


class _Special(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A value that JSON cannot represent."""

    b64: str | None = None
    real: Literal["inf", "-inf"] | None = None


_Cell = _Int64 | float | str | _Special | None
_encode = msgspec.json.Encoder().encode
_header_of = msgspec.json.Decoder(Header).decode
_cells_of = msgspec.json.Decoder(Annotated[list[_Cell], msgspec.Meta(max_length=MAX_COLUMNS)]).decode


def row_lines(answer: Answer, node: Identity) -> Iterator[bytes]:
    """The answer in pieces of some hundred lines."""
    header = Header(
        node=node,
        columns=list(answer.columns),
        types=[_type([row[place] for row in answer.rows]) for place in range(len(answer.columns))],
        rows=len(answer.rows),
        is_truncated=answer.is_truncated,
        elapsed_ns=answer.elapsed_ns,
        notes=list(answer.notes),
    )
    yield _encode(header) + b"\n"
    for at in range(0, len(answer.rows), _ROWS_AT_ONCE):
        yield b"".join(_encode([_sent(value) for value in row]) + b"\n" for row in answer.rows[at : at + _ROWS_AT_ONCE])


class LineReader:
    """Takes an answer apart as it arrives. header: once its line is there. rows: those read so far."""

    def __init__(self, *, most_rows: int) -> None:
        self.header: Header | None = None
        self.rows: list[Row] = []
        self._most_rows = most_rows
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """The next bytes, in whatever pieces they come.

        Raises:
            LinesError: they are no answer.
        """
        self._rest += data
        if b"\n" not in data:
            return
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            self._line(line)

    def end(self) -> Header:
        """The end of the bytes; the answer's header.

        Raises:
            LinesError: something is missing.
        """
        if self.header is None or self._rest or len(self.rows) < self.header.rows:
            raise LinesError("its answer broke off", hint=_BROKEN)
        return self.header

    def _line(self, line: bytes) -> None:
        try:
            if self.header is None:
                self.header = self._checked(_header_of(line))
            else:
                self.rows.append(self._row(line, self.header))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            what = "row" if self.header else "header"
            raise LinesError(f"its answer is invalid: a {what} is not what it should be", hint=_BROKEN) from error

    def _checked(self, header: Header) -> Header:
        if len(header.types) != len(header.columns):
            raise LinesError("its answer is invalid: it has other types than columns", hint=_BROKEN)
        if header.rows > self._most_rows:
            raise LinesError(f"it answers with more rows than the {self._most_rows:,} asked for", hint=_BROKEN)
        return header

    def _row(self, line: bytes, header: Header) -> Row:
        cells = _cells_of(line)
        if len(cells) != len(header.columns) or len(self.rows) >= header.rows:
            raise LinesError("its answer is invalid: rows do not fit its header", hint=_BROKEN)
        return tuple(_received(cell) for cell in cells)


def _type(values: Sequence[Value]) -> Type:
    kinds = {type(value) for value in values} - {type(None)}
    names: dict[type, Type] = {int: "integer", float: "real", str: "text", bytes: "blob"}
    if not kinds:
        return ""
    if kinds == {int, float}:
        return "real"
    return names[kinds.pop()] if len(kinds) == 1 else "mixed"


def _sent(value: Value) -> int | float | str | _Special | None:
    if isinstance(value, bytes):
        return _Special(b64=base64.b64encode(value).decode())
    if isinstance(value, float) and math.isinf(value):
        return _Special(real="inf" if value > 0 else "-inf")
    return value


def _received(cell: int | float | str | _Special | None) -> Value:
    if not isinstance(cell, _Special):
        return cell
    if cell.real is not None:
        return float(cell.real)
    try:
        return base64.b64decode(cell.b64 or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise LinesError("its answer is invalid: a blob is not base64", hint=_BROKEN) from error
