"""Tables as a recorder sees them, and the vocabulary stored with every database."""

from __future__ import annotations

import apsw
import numpy as np
import pytest

from ingero.ops import OPS
from ingero.store import vocabulary
from ingero.store.writing import tables


def test_ops_table_holds_every_traced_call_once() -> None:
    rows = list(vocabulary.op_rows())
    assert len({row[:2] for row in rows}) == len(rows)
    assert {op.name for op in OPS} <= {row[2] for row in rows}


@pytest.mark.parametrize("name", sorted(tables.BY_NAME))
def test_generated_insert_is_accepted_and_stays_short_enough_to_be_kept_compiled(name: str) -> None:
    db = apsw.Connection(":memory:")
    db.execute(tables.sql_text("schema.sql"))
    table = tables.BY_NAME[name]
    sql = table.insert_sql(table.rows_per_statement)
    assert len(sql) <= 16_384
    assert len(db.execute(f"EXPLAIN {sql}", [None] * len(table.columns) * table.rows_per_statement).fetchall()) > 0


def test_rows_come_in_column_order_with_defaults_and_repeated_values() -> None:
    rows = tables.CULPRITS.rows(
        2, session=1, start_ns=np.array([5, 6]), process=3, kind=2, culprit_pid=[7, 8], ns=np.array([9, 10])
    )
    assert rows == [(1, 5, 1, 3, 2, 7, 0, 0, 9, 0), (1, 6, 1, 3, 2, 8, 0, 0, 10, 0)]


def test_unsigned_numbers_keep_their_bits() -> None:
    (row,) = tables.CLOCK_PAIRS.rows(1, session=1, mono_ns=np.array([2**64 - 1], dtype=np.uint64), unix_ns=0)
    assert row == (1, -1, 0, None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"sesion": 1, "mono_ns": 1, "unix_ns": 1}, "no column sesion"),
        ({"session": 1, "mono_ns": 1}, "unix_ns has no default"),
        ({"session": [1, 2, 3], "mono_ns": 1, "unix_ns": 1}, "3 values for 2 rows"),
    ],
)
def test_wrong_columns_are_refused(columns: dict[str, tables.Column], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tables.CLOCK_PAIRS.rows(2, **columns)
