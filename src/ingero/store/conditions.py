"""SQL conditions that select rows by time window and process; queries bind :begin, :end and :process."""

from __future__ import annotations

from collections.abc import Iterable

from ingero.store.vocabulary import STATE_COLUMNS
from ingero.units import SECOND_NS

LONGEST_PERIOD_NS = 60 * SECOND_NS  # longest period of a row of sums


def within(column: str) -> str:
    """SQL: whether a time lies in the window."""
    return f"{column} >= :begin AND {column} < :end"


def period_ns(table: str = "") -> str:
    """SQL: the period of a row of sums, in ns."""
    return f"CAST({_column(table, 'period_s')} * {SECOND_NS} + 0.5 AS INTEGER)"


def touches(table: str = "") -> str:
    """SQL: whether a row's period overlaps the window; the first condition is there for the index."""
    start_ns = _column(table, "start_ns")
    return (
        f"{start_ns} > :begin - {LONGEST_PERIOD_NS} AND {start_ns} < :end AND {start_ns} + {period_ns(table)} > :begin"
    )


def share(table: str) -> str:
    """SQL: the share of a row's period that lies in the window, 0 to 1."""
    period = period_ns(table)
    inside = f"min(:end, {table}.start_ns + {period}) - max(:begin, {table}.start_ns)"
    return f"(({inside}) / CAST({period} AS REAL))"


def of_process(table: str = "") -> str:
    """SQL: whether a row is of the process asked for; true if none is asked for."""
    return f"(:process IS NULL OR {_column(table, 'process')} = :process)"


def columns(names: Iterable[str], table: str = "") -> str:
    """SQL: these columns of a table; `period_ns` stands for the row's period in ns."""
    return ", ".join(period_ns(table) if name == "period_ns" else _column(table, name) for name in names)


def sums_of_clocks(table: str) -> str:
    """SQL: the sums of the eight thread states' times, in the order of `vocabulary.STATES`."""
    return ", ".join(f"sum({table}.{name})" for name in STATE_COLUMNS)


def sum_of(column: str, value: str = "") -> str:
    """SQL: the sum of a column, or of a value computed from it.

    A sum of bytes never overflows and is exact to 9 PB: sizes that programs ask for by mistake can be huge.
    """
    value = value or column
    return f"CAST(total({value}) AS INTEGER)" if column.endswith("bytes") else f"sum({value})"


def _column(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name
