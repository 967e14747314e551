"""Writes rows into a Parquet file through DuckDB, an optional dependency."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingero.errors import IngeroError
from ingero.serve.structured.row_formats import distinct_names
from ingero.store.sql_text import Row, Value

if TYPE_CHECKING:
    import duckdb

_ROWS_AT_ONCE = 50_000
_MEMORY = "1GB"  # the rest waits in a folder beside the file
_NUMBERS: dict[str, Any] = {"": np.int64, "BIGINT": np.int64, "DOUBLE": np.float64}


class ParquetError(IngeroError):
    """The file cannot be written."""


def write_parquet(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> int:
    """Write the rows, compressed; returns their number.

    A column takes the type of its values: integers, numbers, blobs, otherwise texts.

    Raises:
        ParquetError: DuckDB is missing, or the file cannot be written.
    """
    try:
        import duckdb  # noqa: PLC0415  # optional
    except ImportError as error:
        raise ParquetError("Parquet files need the package duckdb", hint="pip install 'ingero[parquet]'") from error
    try:
        with duckdb.connect(config={"temp_directory": f"{path.absolute()}.tmp", "memory_limit": _MEMORY}) as db:
            table = _Table(db, distinct_names(columns))
            batches = iter(rows)
            while some := list(itertools.islice(batches, _ROWS_AT_ONCE)):
                table.add(some)
            db.table("answer").write_parquet(str(path), compression="zstd")
    except (duckdb.Error, OSError) as error:
        raise ParquetError(f"cannot write {path}: {error}", hint="write elsewhere with --parquet F") from error
    return table.count


class _Table:
    """A DuckDB table whose column types widen when a value does not fit; kinds: "" while only NULL was seen."""

    def __init__(self, db: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
        self.count = 0
        self._db = db
        self._names = names
        self._kinds = [""] * len(names)
        db.execute(f"CREATE TABLE answer ({', '.join(f'{_quoted(name)} BIGINT' for name in names)})")

    def add(self, rows: Sequence[Row]) -> None:
        """Append rows."""
        arrays: dict[str, Any] = {}
        for place, values in enumerate(zip(*rows, strict=True)):
            self._widen(place, _wider(self._kinds[place], _kind(values)))
            arrays[f"c{place}"] = _array(values, self._kinds[place])
        self._db.register("batch", arrays)
        self._db.execute("INSERT INTO answer SELECT * FROM batch")
        self.count += len(rows)

    def _widen(self, place: int, kind: str) -> None:
        if kind != self._kinds[place]:
            self._kinds[place] = kind
            self._db.execute(f"ALTER TABLE answer ALTER {_quoted(self._names[place])} TYPE {kind}")


def _kind(values: Sequence[Value]) -> str:
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return ""
    if kinds <= {int, float}:
        return "BIGINT" if kinds == {int} else "DOUBLE"
    return "BLOB" if kinds == {bytes} else "VARCHAR"


def _wider(one: str, other: str) -> str:
    if one == other or not one or not other:
        return one or other
    return "DOUBLE" if {one, other} == {"BIGINT", "DOUBLE"} else "VARCHAR"


def _array(values: Sequence[Value], kind: str) -> Any:  # what DuckDB takes: a masked array, or one of objects
    if kind in _NUMBERS:
        is_null = [value is None for value in values]
        return np.ma.masked_array([0 if value is None else value for value in values], is_null, _NUMBERS[kind])
    if kind == "VARCHAR":
        values = [value.hex() if isinstance(value, bytes) else value for value in values]
        values = [value if value is None else str(value) for value in values]
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
