"""Spreads values with a duration evenly over the columns of a chart that they overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def spread(begins: Array, ends: Array, values: Array, edges: Array) -> npt.NDArray[np.int64]:
    """Integer values that grew evenly from begin to end (ns), divided among the columns; sums are preserved.

    values: (rows, fields) -> (edges - 1, fields). edges: evenly spaced. Rows may overlap each other and exceed the
    edges; the part outside is left out. A row without a length belongs to the column it is in.
    """
    count, step = len(edges) - 1, int(edges[1] - edges[0])
    found = np.zeros((count, values.shape[1]), np.int64)
    lengths = np.maximum(ends - begins, 1)
    columns = np.maximum(begins - edges[0], 0) // step
    before = np.clip(edges[0] - begins, 0, lengths) / lengths
    done = np.rint(values * before[:, None]).astype(np.int64)  # of each row, until the column that is next
    rows = np.flatnonzero((columns < count) & (before < 1))
    while len(rows):
        column = columns[rows]
        until = np.clip(edges[0] + (column + 1) * step - begins[rows], 0, lengths[rows])
        grown = np.rint(values[rows] * (until / lengths[rows])[:, None]).astype(np.int64)
        np.add.at(found, column, grown - done[rows])
        done[rows] = grown
        columns[rows] += 1
        rows = rows[(until < lengths[rows]) & (column + 1 < count)]
    return found


def clock_points(seconds: Array, step_ns: int) -> list[dict[str, Any]]:
    """Rows of `arrays.THREAD_STATE_SECOND_DTYPE` of one process as points of step_ns each; empty ones are left out."""
    if not len(seconds):
        return []
    begins, ends = seconds["start_ns"], seconds["start_ns"] + seconds["period_ns"]
    first = int(begins.min()) // step_ns
    edges = step_ns * np.arange(first, -(-int(ends.max()) // step_ns) + 1, dtype=np.int64)
    values = np.concatenate([seconds["period_ns"][:, None], seconds["state_ns"]], axis=1)
    return [
        {"start_ns": start, "elapsed_ns": elapsed, "ns": clocks}
        for start, (elapsed, *clocks) in zip(edges.tolist(), spread(begins, ends, values, edges).tolist(), strict=False)
        if elapsed
    ]
