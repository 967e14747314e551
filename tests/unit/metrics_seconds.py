"""Recorded seconds with known calls, for tests of the metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ingero.capture.loop.period import period_until
from ingero.capture.loop.second import SecondOfCounts
from ingero.capture.sums.cells import CellGrowth
from ingero.ops import BY_NAME
from ingero.store import histograms
from ingero.store.vocabulary import STATES
from ingero.units import SECOND_NS

_GROWTH = np.dtype([("count", "u8"), ("errors", "u8"), ("nested", "u8"), ("size_bytes", "u8"), ("sum_ns", "u8")])


def cell(op: str, durations_ns: Sequence[int], *, size_bytes: int = 0, slot: int = 0) -> CellGrowth:
    """Calls of one operation with these durations."""
    growth = np.array([(len(durations_ns), 0, 0, size_bytes, sum(durations_ns))], _GROWTH)[0]
    counts = histograms.count(durations_ns).astype(np.uint32)
    return CellGrowth(
        slot=slot, op=BY_NAME[op].id, caller=0, growth=growth, row=0, max_ns=max(durations_ns), histogram=counts
    )


def second(*cells: CellGrowth, **more: Any) -> SecondOfCounts:
    """A second of counts for metrics."""
    quiet = SecondOfCounts(
        period=period_until(10**18, SECOND_NS),
        traced_processes=1,
        threads=4,
        cells=list(cells),
        states_ns=np.zeros(len(STATES), np.int64),
        culprit_times=[],
        drops={},
        in_flight=0,
    )
    return replace(quiet, **more)
