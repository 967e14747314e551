"""Checks after an unexpected error whether the file explains it: reads the whole file once."""

from __future__ import annotations

import struct

import apsw

from ingero.store.errors import OF_THE_FILE, reading_detail

# Exceptions raised where values of the wrong type, size or form are used.
OF_VALUES = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError),
    *(struct.error, apsw.SQLError, apsw.MismatchError),
)


def damage_of(db: apsw.Connection) -> str:
    """What SQLite finds wrong with an open recording: its pages, and values of other types than their columns.

    "": nothing. A recording made to confuse its reader may hold values that are right for SQLite.
    """
    try:
        (checked,) = next(iter(db.execute("PRAGMA main.quick_check(1)")))
    except OF_THE_FILE as error:
        return reading_detail(error)
    return "" if checked == "ok" else str(checked)
