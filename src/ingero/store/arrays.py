"""Epochs and clock seconds as numpy structured arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ingero.store.vocabulary import CLOCK_COLUMNS, CLOCKS

CHECKPOINTS = 8
NOT_RECORDED = -1

_EPOCH_NUMBERS = (
    "process",
    "pid",
    "device",
    "stream",
    "a_ns",
    "f_ns",
    "s_ns",
    "r_ns",
    "r_low_ns",
    "r_high_ns",
    "b_ns",
    "e_ns",
    "x_ns",
    "p_ns",
    "launches",
    "bytes",
    "op_set",
    "class_key",
    "source",
    "op",
    "caller",
    "graph",
    "a_tid",
    "f_tid",
    "b_tid",
    "flags",
    "checkpoint_step",
)
_EPOCH_PARTS = ("empty", "enqueue", "drain")
_SECOND_NUMBERS = ("start_ns", "period_s", "process", "threads", "switches", "preemptions")

# One epoch. Clocks are in the order of vocabulary.CLOCKS, -1 where not recorded; op_set and class_key are numbers of
# texts (Reader.texts); checkpoint_ns is 0 from the first unused on.
EPOCH_DTYPE = np.dtype(
    [(name, "<i8") for name in _EPOCH_NUMBERS]
    + [(f"{part}_clock_ns", "<i8", (len(CLOCKS),)) for part in _EPOCH_PARTS]
    + [("checkpoint_ns", "<i8", (CHECKPOINTS,))]
)

# What the threads of one process did in `period_s` seconds from start_ns on.
CLOCK_SECOND_DTYPE = np.dtype([(name, "<i8") for name in _SECOND_NUMBERS] + [("clock_ns", "<i8", (len(CLOCKS),))])

EPOCH_COLUMNS = ", ".join(
    [f"e.{name}" for name in _EPOCH_NUMBERS]
    + [f"coalesce(e.{part}_{clock}, {NOT_RECORDED})" for part in _EPOCH_PARTS for clock in CLOCK_COLUMNS]
)
CLOCK_SECOND_COLUMNS = ", ".join((*_SECOND_NUMBERS, *CLOCK_COLUMNS))


def epochs(rows: Sequence[Sequence[int]], checkpoints: Sequence[bytes | None]) -> npt.NDArray[np.void]:
    """Rows of `EPOCH_COLUMNS` and the checkpoint bytes of each as an array of `EPOCH_DTYPE`."""
    array = _from_rows(rows, EPOCH_DTYPE)
    for index, packed in enumerate(checkpoints):
        if packed:
            times = np.frombuffer(packed, dtype="<i8")[:CHECKPOINTS]
            array["checkpoint_ns"][index, : len(times)] = times
    return array


def clock_seconds(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.void]:
    """Rows of `CLOCK_SECOND_COLUMNS` as an array of `CLOCK_SECOND_DTYPE`."""
    return _from_rows(rows, CLOCK_SECOND_DTYPE)


def _from_rows(rows: Sequence[Sequence[int]], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    array = np.zeros(len(rows), dtype=dtype)
    if not rows:
        return array
    numbers = np.array(rows, dtype=np.int64)
    column = 0
    for name in dtype.names or ():
        width = int(np.prod(dtype[name].shape, dtype=int))
        if column + width > numbers.shape[1]:
            break
        array[name] = numbers[:, column : column + width].reshape((len(rows), *dtype[name].shape))
        column += width
    return array
