"""Rows of bytes copied between host and GPUs: exact sums beside those of the calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ingero.capture.sums.cells import COPY_SUMS, CellGrowth
from ingero.ops import BY_ID, OPS
from ingero.store.writing import tables
from ingero.store.writing.row_columns import Rows

Array = np.ndarray[Any, np.dtype[Any]]

_MAY_TOUCH_HOST = frozenset(op.id for op in OPS if op.to or op.origin)


def copy_rows(session: int, cells: Iterable[tuple[int, CellGrowth]], period: Mapping[str, Any]) -> Rows:
    """One row per (process, operation) that copied bytes. cells: with the numbers of their processes."""
    moved: dict[tuple[int, int], Array] = {}
    for process, cell in cells:
        if cell.op in _MAY_TOUCH_HOST:
            sums = np.array([int(cell.growth[name]) for name in COPY_SUMS], np.int64)
            moved[process, cell.op] = moved.get((process, cell.op), 0) + sums
    known = {key: sums for key, sums in moved.items() if sums.any()}
    return tables.COPIES.rows(
        len(known),
        session=session,
        **period,
        process=[process for process, _ in known],
        source=[int(BY_ID[op].source) for _, op in known],
        op=[BY_ID[op].code for _, op in known],
        **{name: [int(sums[place]) for sums in known.values()] for place, name in enumerate(COPY_SUMS)},
    )
