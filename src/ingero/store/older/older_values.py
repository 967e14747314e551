"""SQL for values that recordings of earlier versions store otherwise than today, in one place for all readers.

Readers and merging see today's values through temporary views; a recording that is continued gets them for good, by a
migration. A sentence here is what such a file holds, byte by byte: it is never worded anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from types import MappingProxyType

import apsw

from ingero import given_up

# Version 1 stored sentences, one a line, where there are codes now.
SENTENCES_OF_VERSION_1: Mapping[str, given_up.GivenUp] = MappingProxyType(
    {
        "launches are traced at the driver only: counts stay exact, the caller is the runtime": (
            given_up.LAUNCHES_AT_DRIVER
        ),
        "event records and stream waits are counted at the driver, without durations": given_up.EVENTS_AT_DRIVER,
        "launches of the driver are counted without durations": given_up.LAUNCHES_COUNTED,
        "event records and stream waits are not traced: a wait for an event counts as one for the main stream": (
            given_up.EVENTS_OFF
        ),
        "allocations and frees are not traced": given_up.MEMORY_OFF,
        "launches are not traced: how long the GPU worked between two syncs is not known": given_up.LAUNCHES_OFF,
        "event records and stream waits are not traced: waits for events end no epoch": (
            given_up.EVENTS_AND_INTERVALS_OFF
        ),
        "launches are not traced: epochs are not comparable": given_up.LAUNCHES_AND_INTERVALS_OFF,
        "asynchronous copies and memsets are not traced: epochs are not comparable": (
            given_up.COPIES_AND_INTERVALS_OFF
        ),
        "asynchronous copies and memsets are not traced": given_up.COPIES_OFF,
        "stacks of recorded calls are not taken": given_up.STACKS_OFF,
        "probes of what is not traced stay: perf-event uprobes take 0.1 s each to detach": given_up.PROBES_STAY,
        "50 % of the usual number of records, rings drained every 0.5 s": given_up.HALF_OF_RECORDS,
        "50% of the usual number of records, rings drained every 0.5 s": given_up.HALF_OF_RECORDS,
        "20 % of the usual number of records, rings drained every 1 s": given_up.FIFTH_OF_RECORDS,
        "20% of the usual number of records, rings drained every 1 s": given_up.FIFTH_OF_RECORDS,
        "5.0 % of the usual number of records, rings drained every 1 s": given_up.TWENTIETH_OF_RECORDS,
        "5% of the usual number of records, rings drained every 1 s": given_up.TWENTIETH_OF_RECORDS,
    }
)

_PYTHON_LINES_OF_VERSION_1 = '"Python lines of calls that returned within 2 s":'

# Version 1 said in the note of a stack, and nowhere else, that its Python frames are not all there.
_CUT_NOTES_OF_VERSION_1 = ("Python frames", "a part of the stack was lost")


def columns_of(version: int, table: str, found: Set[str]) -> dict[str, str]:
    """The columns of a table that a recording of this version lacks or holds otherwise: SQL over what it holds.

    found: its columns, by today's names. The first builds lack those that the SQL asks for, too.
    """
    columns = _VERSION_1.get(table, {}) if version == 1 else {}
    return {column: sql for column, sql in columns.items() if _MADE_OF.get(column, column) in found}


def has_older_values(version: int) -> bool:
    """Whether a recording of this version holds anything otherwise."""
    return version == 1


def name_what_was_given_up(db: apsw.Connection) -> None:
    """From version 1 to 2."""
    db.execute("ALTER TABLE raw_stacks ADD COLUMN is_python_whole INTEGER NOT NULL DEFAULT 1")
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for table, columns in _VERSION_1.items():
        if table not in there:  # of an earlier name: such a file is read, not continued (own_schema.py)
            continue
        db.execute(f"UPDATE {table} SET {', '.join(f'{name} = {sql}' for name, sql in columns.items())}")


def _codes(column: str) -> str:
    """SQL: the codes of a column of sentences, comma separated."""
    sql = column
    for sentence, given in SENTENCES_OF_VERSION_1.items():
        sql = f"replace({sql}, '{sentence}', '{given.code}')"
    return f"replace({sql}, char(10), ',')"


def _without(column: str, *texts: str) -> str:
    """SQL: whether a column contains none of these."""
    return " AND ".join(f"{column} NOT LIKE '%{text}%'" for text in texts)


_VERSION_1: Mapping[str, Mapping[str, str]] = {
    "raw_sessions": {"not_traced": f"replace(not_traced, '{_PYTHON_LINES_OF_VERSION_1}', '\"python_lines\":')"},
    "raw_overhead_levels": {"not_traced": _codes("not_traced")},
    "raw_stacks": {"is_python_whole": _without("note", *_CUT_NOTES_OF_VERSION_1)},
}
_MADE_OF = {"is_python_whole": "note"}  # of other columns than themselves
