"""The SQL that ties rows to a window of time and to a process; queries bind :begin, :end and :process."""

from __future__ import annotations

from collections.abc import Iterable

from ingero.store.vocabulary import STATE_COLUMNS
from ingero.units import SECOND_NS

LONGEST_PERIOD_NS = 60 * SECOND_NS  # that a row of sums stands for


def within(column: str) -> str:
    """The moment lies in the window."""
    return f"{column} >= :begin AND {column} < :end"


def period_ns(table: str = "") -> str:
    """How long a row of sums stands for."""
    return f"CAST({_column(table, 'period_s')} * {SECOND_NS} + 0.5 AS INTEGER)"


def touches(table: str = "") -> str:
    """Rows with a period that touch the window; the first condition is there for the index."""
    start_ns = _column(table, "start_ns")
    return (
        f"{start_ns} > :begin - {LONGEST_PERIOD_NS} AND {start_ns} < :end AND {start_ns} + {period_ns(table)} > :begin"
    )


def share(table: str) -> str:
    """How much of a row with a period lies in the window, 0 to 1."""
    period = period_ns(table)
    inside = f"min(:end, {table}.start_ns + {period}) - max(:begin, {table}.start_ns)"
    return f"(({inside}) / CAST({period} AS REAL))"


def of_process(table: str = "") -> str:
    """Rows of the process asked for; of all where none is."""
    return f"(:process IS NULL OR {_column(table, 'process')} = :process)"


def columns(names: Iterable[str], table: str = "") -> str:
    """These columns of a table; `period_ns` among them is how long a row stands for."""
    return ", ".join(period_ns(table) if name == "period_ns" else _column(table, name) for name in names)


def sums_of_clocks(table: str) -> str:
    """The sums of the eight clocks, in the order of `vocabulary.STATES`."""
    return ", ".join(f"sum({table}.{name})" for name in STATE_COLUMNS)


def sum_of(column: str, value: str = "") -> str:
    """The sum of a column, or of a value made of it.

    That of bytes never overflows, and is exact to 9 PB: what programs ask for by mistake is as large as numbers get.
    """
    value = value or column
    return f"CAST(total({value}) AS INTEGER)" if column.endswith("bytes") else f"sum({value})"


def _column(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name
