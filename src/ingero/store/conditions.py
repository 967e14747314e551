"""The SQL that ties rows to a window of time and to a process; queries bind :begin, :end and :process."""

from __future__ import annotations

from ingero.store.vocabulary import CLOCK_COLUMNS
from ingero.units import SECOND_NS

LONGEST_PERIOD_NS = 60 * SECOND_NS  # that a row of sums stands for


def within(column: str) -> str:
    """The moment lies in the window."""
    return f"{column} >= :begin AND {column} < :end"


def touches(table: str = "") -> str:
    """Rows with a period that touch the window; the first condition is there for the index."""
    start_ns, period_s = _column(table, "start_ns"), _column(table, "period_s")
    return (
        f"{start_ns} > :begin - {LONGEST_PERIOD_NS} AND {start_ns} < :end "
        f"AND {start_ns} + {period_s} * {SECOND_NS} > :begin"
    )


def share(table: str) -> str:
    """How much of a row with a period lies in the window, 0 to 1."""
    period_ns = f"{table}.period_s * {SECOND_NS}"
    return (
        f"((min(:end, {table}.start_ns + {period_ns}) - max(:begin, {table}.start_ns)) "
        f"/ ({table}.period_s * {SECOND_NS}.0))"
    )


def of_process(table: str = "") -> str:
    """Rows of the process asked for; of all where none is."""
    return f"(:process IS NULL OR {_column(table, 'process')} = :process)"


def sums_of_clocks(table: str) -> str:
    """The sums of the eight clocks, in the order of `vocabulary.CLOCKS`."""
    return ", ".join(f"sum({table}.{name})" for name in CLOCK_COLUMNS)


def sum_of(column: str, value: str = "") -> str:
    """The sum of a column, or of a value made of it.

    That of bytes never overflows, and is exact to 9 PB: what programs ask for by mistake is as large as numbers get.
    """
    value = value or column
    return f"CAST(total({value}) AS INTEGER)" if column.endswith("bytes") else f"sum({value})"


def _column(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name
