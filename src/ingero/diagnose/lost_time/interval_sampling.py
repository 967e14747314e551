"""The sample of a long time range whose sync intervals are read whole, so that an hour costs no more than minutes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

MAX_WHOLE_SYNC_INTERVALS = 8_000  # that are read whole; each is read in 15 us (docs/adr/0029)
_PIECE = 250  # sync intervals
_MAX_GAP_NS = 5_000_000_000  # between two sync intervals of one window


def sample_windows(sync_intervals: Array) -> list[Window]:
    """Windows that hold all of a few sync intervals, or an evenly spread sample of many."""
    if len(sync_intervals) <= MAX_WHOLE_SYNC_INTERVALS:
        return _runs(sync_intervals)
    starts = np.arange(0, len(sync_intervals), _PIECE)
    return _windows(sync_intervals, starts[_spread(np.arange(len(starts)), MAX_WHOLE_SYNC_INTERVALS // _PIECE)])


def weighted_windows(sync_intervals: Array, weight: Array) -> tuple[list[Window], list[Window]]:
    """Windows of the pieces with most weight, which count as they are, and of an evenly spread sample of all others.

    A few sync intervals are all in the first list.
    """
    if len(sync_intervals) <= MAX_WHOLE_SYNC_INTERVALS:
        return _runs(sync_intervals), []
    starts = np.arange(0, len(sync_intervals), _PIECE)
    half = MAX_WHOLE_SYNC_INTERVALS // _PIECE // 2
    order = np.argsort(-np.add.reduceat(weight, starts), kind="stable")
    heavy, rest = np.sort(order[:half]), np.sort(order[half:])
    return _windows(sync_intervals, starts[heavy]), _windows(sync_intervals, starts[_spread(rest, half)])


def _spread(pieces: Array, count: int) -> Array:
    chosen: Array = pieces[np.unique(np.linspace(0, len(pieces) - 1, min(count, len(pieces))).astype(np.int64))]
    return chosen


def _windows(sync_intervals: Array, starts: Array) -> list[Window]:
    return [window for start in starts.tolist() for window in _runs(sync_intervals[start : start + _PIECE])]


def _runs(sync_intervals: Array) -> list[Window]:
    """Windows around sync intervals that follow each other, without long gaps."""
    ends = sync_intervals["sync_end_ns"]
    breaks = np.flatnonzero(np.diff(ends) > _MAX_GAP_NS)
    firsts, lasts = np.append(0, breaks + 1), np.append(breaks, len(ends) - 1)
    pairs = zip(ends[firsts].tolist(), ends[lasts].tolist(), strict=True)
    return [Window(begin_ns=first, end_ns=last + 1) for first, last in pairs]
