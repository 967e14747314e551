"""The timeline of lost time: its share of wall time, piece by piece, from before a time range until after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.findings import Moment
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_MAX_PIECES = 40
_AROUND_RATIO = 0.25  # of the time range's length, shown before and after it
_MIN_PIECE_NS = 100_000_000


def timeline(sync_intervals: Array, excess: Array, window: Window) -> tuple[Moment, ...]:
    """The pieces in and around a window. A sync interval counts where it ended; catching up counts as 0."""
    around = int(window.duration_ns * _AROUND_RATIO)
    begin = max(window.begin_ns - around, int(sync_intervals["prev_sync_end_ns"][0]))
    end = min(window.end_ns + around, int(sync_intervals["sync_end_ns"][-1]) + 1)
    piece = max(_MIN_PIECE_NS, -(-(end - begin) // _MAX_PIECES))
    count = -(-(end - begin) // piece)
    inside = (sync_intervals["sync_end_ns"] > begin) & (sync_intervals["sync_end_ns"] < end)
    places = (sync_intervals["sync_end_ns"][inside] - begin) // piece
    lost = np.bincount(places, weights=excess[inside], minlength=count)
    lengths = (sync_intervals["sync_end_ns"] - sync_intervals["prev_sync_end_ns"])[inside]
    wall = np.bincount(places, weights=lengths, minlength=count)
    ratios = np.clip(lost / np.maximum(wall, 1), 0, 1)
    return tuple(
        Moment(begin_ns=begin + at * piece, end_ns=min(begin + (at + 1) * piece, end), lost_ratio=round(ratio, 4))
        for at, ratio in enumerate(ratios.tolist())
    )
