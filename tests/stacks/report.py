"""What the run found, as tables: printed at its end and written to build/stacks/report.md."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.stacks.debian import CACHE

_HEADS = {
    "matrix": ("interpreter", "stacks", "freed code at a re-used address", "lost"),
    "lines": ("interpreter", "line of an instruction", "code objects"),
    "native": ("program", "native stacks complete", "endings"),
    "bad input": ("what", "outcome"),
}


@dataclass
class Report:
    """Rows by table."""

    rows: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)

    def add(self, table: str, *cells: str) -> None:
        """A row of a table of `_HEADS`."""
        self.rows.setdefault(table, []).append(cells)

    def text(self) -> str:
        """All tables, in Markdown."""
        return "\n\n".join(_table(_HEADS[name], rows) for name, rows in self.rows.items())

    def write(self) -> None:
        """Leaves it where the documentation is taken from."""
        (CACHE / "report.md").write_text(self.text() + "\n")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
