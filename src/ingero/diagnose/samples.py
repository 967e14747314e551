"""Which pieces of a long stretch of epochs are read whole, so that an hour costs no more than some minutes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

MOST_EPOCHS = 8_000  # an epoch is read in 15 us
_PIECE = 250  # epochs
_APART_NS = 5_000_000_000


def sample_windows(epochs: Array) -> list[Window]:
    """Windows that hold all of a few epochs, of many an evenly spread sample."""
    if len(epochs) <= MOST_EPOCHS:
        return _runs(epochs)
    starts = np.arange(0, len(epochs), _PIECE)
    return _windows(epochs, starts[_spread(np.arange(len(starts)), MOST_EPOCHS // _PIECE)])


def weighted_windows(epochs: Array, weight: Array) -> tuple[list[Window], list[Window]]:
    """The pieces with most weight, to be counted as they are, and an evenly spread sample of all the rest.

    Few epochs are all in the first.
    """
    if len(epochs) <= MOST_EPOCHS:
        return _runs(epochs), []
    starts = np.arange(0, len(epochs), _PIECE)
    half = MOST_EPOCHS // _PIECE // 2
    order = np.argsort(-np.add.reduceat(weight, starts), kind="stable")
    heavy, rest = np.sort(order[:half]), np.sort(order[half:])
    return _windows(epochs, starts[heavy]), _windows(epochs, starts[_spread(rest, half)])


def _spread(pieces: Array, count: int) -> Array:
    chosen: Array = pieces[np.unique(np.linspace(0, len(pieces) - 1, min(count, len(pieces))).astype(np.int64))]
    return chosen


def _windows(epochs: Array, starts: Array) -> list[Window]:
    return [window for start in starts.tolist() for window in _runs(epochs[start : start + _PIECE])]


def _runs(epochs: Array) -> list[Window]:
    """Windows around epochs that follow each other, without the long times between them."""
    ends = epochs["b_ns"]
    breaks = np.flatnonzero(np.diff(ends) > _APART_NS)
    firsts, lasts = np.append(0, breaks + 1), np.append(breaks, len(ends) - 1)
    pairs = zip(ends[firsts].tolist(), ends[lasts].tolist(), strict=True)
    return [Window(begin_ns=first, end_ns=last + 1) for first, last in pairs]
