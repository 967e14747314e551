"""Rows as columns: numbers stay numpy's until they are written, in a fifth of the memory of Python's objects."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeGuard, cast, overload

import numpy as np
import numpy.typing as npt

from ingero.store.sql_text import Row, Value

Column: TypeAlias = "npt.NDArray[np.generic] | Sequence[Value] | Value"

_AT_A_TIME = 1024
_PLAIN = frozenset((int, float, str, bytes, type(None)))  # one value for all rows; asking an abstract class takes 2 us


class Rows(Sequence[Row]):
    """`count` rows; each column holds so many values, or one value for all of them.

    The arrays and sequences must be the rows' own: they are read when the rows are.
    """

    __slots__ = ("_columns", "_count")

    def __init__(self, count: int, columns: Sequence[Column]) -> None:
        self._count, self._columns = count, columns

    def __len__(self) -> int:
        """Number of rows."""
        return self._count

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> Rows: ...

    def __getitem__(self, at: int | slice) -> Row | Rows:
        """One row, or a slice of rows."""
        if isinstance(at, slice):
            count = len(range(*at.indices(self._count)))
            return Rows(count, [column[at] if _is_long(column) else column for column in self._columns])
        place = range(self._count)[at]
        return next(iter(self[place : place + 1]))

    def __iter__(self) -> Iterator[Row]:
        """The rows as tuples, made in batches."""
        if self._count <= _AT_A_TIME:
            yield from zip(*(_values(column, self._count) for column in self._columns), strict=True)
            return
        for begin in range(0, self._count, _AT_A_TIME):
            yield from self[begin : begin + _AT_A_TIME]

    def column(self, at: int) -> Iterable[Value]:
        """The values of one column."""
        return _values(self._columns[at], self._count)

    def __eq__(self, other: object) -> bool:
        """Whether the other has the same rows, as a sequence of any kind."""
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as of a list


def owned(name: str, column: Column, count: int) -> Column:
    """A column of the rows' own; unsigned 64-bit numbers become the signed ones with the same bits.

    Raises:
        ValueError: it has another length. name: to tell.
    """
    if isinstance(column, np.generic):
        return cast("Value", column.item())
    if not _is_long(column):
        return column
    if len(column) != count:
        raise ValueError(f"{name}: {len(column)} values for {count} rows")
    if not isinstance(column, np.ndarray):
        return list(column)
    own: npt.NDArray[np.generic] = (column.view(np.int64) if column.dtype == np.uint64 else column).copy()
    return own


def _is_long(column: Column) -> TypeGuard[npt.NDArray[np.generic] | Sequence[Value]]:
    return (
        type(column) not in _PLAIN
        and isinstance(column, (np.ndarray, Sequence))
        and not isinstance(column, (str, bytes))
    )


def _values(column: Column, count: int) -> Iterable[Value]:
    if isinstance(column, np.ndarray):
        values: list[Value] = column.tolist()
        return values
    if isinstance(column, (str, bytes)) or not isinstance(column, Sequence):
        return itertools.repeat(column, count)
    return column
