"""A sink that keeps its rows in memory for tests."""

from __future__ import annotations

from collections.abc import Sequence

from ingero.capture.loop.null_sink import NullSink
from ingero.store.writing.tables import Row, Table


class MemorySink(NullSink):
    """Keeps every row, by the names of its columns; a text is its own number's place in `texts`."""

    def __init__(self) -> None:
        super().__init__("node-1")
        self.rows: list[tuple[Table, dict[str, object]]] = []
        self.texts: list[str] = [""]

    def append(self, table: Table, rows: Sequence[Row]) -> int:
        """Keeps rows."""
        self.rows += [(table, dict(zip(table.columns, row, strict=True))) for row in rows]
        return len(rows)

    def intern(self, text: str) -> int:
        """The place of a text."""
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def of(self, table: Table) -> list[dict[str, object]]:
        """The rows of one table."""
        return [row for of, row in self.rows if of is table]
