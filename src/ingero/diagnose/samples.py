"""Which pieces of a long stretch of epochs are read whole, so that an hour costs no more than some minutes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

MOST_EPOCHS = 8_000  # an epoch is read in 15 us
_PIECE = 250  # epochs
_APART_NS = 5_000_000_000


def sample_windows(epochs: Array, weight: Array) -> list[Window]:
    """Windows that hold all of a few epochs; of many the pieces with most weight, and as many evenly spread ones."""
    if len(epochs) <= MOST_EPOCHS:
        return _runs(epochs)
    starts = np.arange(0, len(epochs), _PIECE)
    weights = np.add.reduceat(weight, starts)
    half = MOST_EPOCHS // _PIECE // 2
    heaviest = np.argsort(-weights, kind="stable")[:half]
    spread = np.linspace(0, len(starts) - 1, half).astype(np.int64)
    chosen = np.unique(np.concatenate([heaviest, spread]))
    pieces = (epochs[starts[at] : starts[at] + _PIECE] for at in chosen)
    return [window for piece in pieces for window in _runs(piece)]


def _runs(epochs: Array) -> list[Window]:
    """Windows around epochs that follow each other, without the long times between them."""
    ends = epochs["b_ns"]
    breaks = np.flatnonzero(np.diff(ends) > _APART_NS)
    firsts, lasts = np.append(0, breaks + 1), np.append(breaks, len(ends) - 1)
    pairs = zip(ends[firsts].tolist(), ends[lasts].tolist(), strict=True)
    return [Window(begin_ns=first, end_ns=last + 1) for first, last in pairs]
