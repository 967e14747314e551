"""The epochs of a lane in little space: what finding lost time needs of each, and the exact sums of the rest.

A digest is written in the transaction that stores its epochs, one row per lane and commit. Rows of raw_epochs take
300 bytes each and are read one by one; an hour of them takes ten seconds, an hour of digests a fraction of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingero.store import tables
from ingero.store.arrays import CLOCK_SUMS, LANE_DTYPE, LANE_SUMS, NOT_RECORDED
from ingero.store.tables import Row
from ingero.store.vocabulary import CLOCK_COLUMNS, EpochFlag

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# As packed: b = a + e + x + p, f = a + e, s = f + enqueue, r = f + x. class: index in the row's `classes`.
_PACKED = np.dtype(
    [(name, "<i8") for name in ("a_ns", "e_ns", "enqueue_ns", "x_ns", "p_ns", "empty_sleep_ns")]
    + [("a_tid", "<i4"), ("launches", "<u4"), ("flags", "<u2"), ("class", "<u2")]
)
_COLUMNS = {name: index for index, name in enumerate(tables.EPOCHS.columns)}
_LANE = [_COLUMNS[name] for name in ("session", "process", "pid", "device", "stream")]
_TIMES = ("a_ns", "f_ns", "s_ns", "r_ns", "r_low_ns", "r_high_ns", "b_ns", "e_ns", "x_ns", "p_ns")
_COUNTS = ("launches", "bytes", "class_key", "a_tid", "flags")
_PARTS = ("empty", "enqueue", "drain")
_NUMBERS = [_COLUMNS[name] for name in (*_TIMES, *_COUNTS)]
_CLOCKS = [_COLUMNS[f"{part}_{clock}"] for part in _PARTS for clock in CLOCK_COLUMNS]
_SLEEP = CLOCK_COLUMNS.index("sleep_ns")
_MOST_LAUNCHES = 2**32 - 1


def digest_rows(epochs: Sequence[Row], text_of: Callable[[int], str]) -> list[Row]:
    """Rows of raw_epoch_digest of these rows of raw_epochs: one per lane. text_of: of the number of a class."""
    lanes: dict[Row, list[Row]] = defaultdict(list)
    for row in epochs:
        lanes[tuple(row[index] for index in _LANE)].append(row)
    return [_row(lane, mine, text_of) for lane, mine in lanes.items()]


def lane_epochs(rows: Sequence[tuple[bytes, str]], number_of: Callable[[str], int]) -> npt.NDArray[np.void]:
    """The epochs of (packed, classes) of digests of one lane as `LANE_DTYPE`. number_of: of the text of a class."""
    packed = np.frombuffer(b"".join(blob for blob, _ in rows), _PACKED)
    numbers = {classes: [number_of(text) for text in classes.split("\n")] for classes in {row[1] for row in rows}}
    every = np.array([number for _, classes in rows for number in numbers[classes]], np.int64)
    firsts = np.cumsum([0, *(len(numbers[classes]) for _, classes in rows)])[:-1]  # of each row in `every`
    lengths = [len(blob) // _PACKED.itemsize for blob, _ in rows]
    return _unpacked(packed, every[np.repeat(firsts, lengths) + packed["class"]])


def _unpacked(packed: Array, classes: Array) -> npt.NDArray[np.void]:
    lane = np.zeros(len(packed), LANE_DTYPE)
    for name in ("a_ns", "e_ns", "x_ns", "p_ns", "empty_sleep_ns", "a_tid", "launches", "flags"):
        lane[name] = packed[name]
    lane["class_key"] = classes
    lane["f_ns"] = lane["a_ns"] + lane["e_ns"]
    lane["s_ns"] = lane["f_ns"] + packed["enqueue_ns"]
    lane["r_ns"] = lane["f_ns"] + lane["x_ns"]
    lane["b_ns"] = lane["r_ns"] + lane["p_ns"]
    return lane


def _row(lane: Row, epochs: Sequence[Row], text_of: Callable[[int], str]) -> Row:
    session, process, pid, device, stream = lane
    table = np.array([[row[index] for index in _NUMBERS] for row in epochs], np.int64)
    column = {name: table[:, index] for index, name in enumerate((*_TIMES, *_COUNTS))}
    clocks = np.array(
        [[NOT_RECORDED if row[index] is None else row[index] for index in _CLOCKS] for row in epochs], np.int64
    ).reshape(len(epochs), len(_PARTS), len(CLOCK_COLUMNS))
    keys, classes = np.unique(column["class_key"], return_inverse=True)
    packed = np.zeros(len(epochs), _PACKED)
    for name in ("a_ns", "e_ns", "x_ns", "p_ns", "a_tid", "flags"):
        packed[name] = column[name]
    packed["launches"] = np.minimum(column["launches"], _MOST_LAUNCHES)
    packed["enqueue_ns"] = column["s_ns"] - column["f_ns"]
    packed["empty_sleep_ns"] = clocks[:, 0, _SLEEP]
    packed["class"] = classes
    (row,) = tables.EPOCH_DIGEST.rows(
        1,
        session=session,
        process=process,
        pid=pid,
        device=device,
        stream=stream,
        begin_ns=int(column["a_ns"].min()),
        end_ns=int(column["b_ns"].max()),
        epochs=len(epochs),
        classes="\n".join(text_of(int(key)) for key in keys),
        packed=packed.tobytes(),
        sums=_sums(column, clocks).tobytes(),
    )
    return row


def _sums(column: dict[str, Array], clocks: Array) -> Array:
    """In the order of LANE_SUMS, then the clocks of the parts."""
    lengths = (column["e_ns"], column["s_ns"] - column["f_ns"], column["b_ns"] - column["s_ns"])
    sums = {
        "epochs": len(column["a_ns"]),
        "incomplete": np.count_nonzero(column["flags"] & int(EpochFlag.INCOMPLETE)),
        "launches": column["launches"].sum(),
        "bytes": column["bytes"].sum(),
        "wall_ns": (column["b_ns"] - column["a_ns"]).sum(),
        "x_ns": column["x_ns"].sum(),
        "p_ns": column["p_ns"].sum(),
        "p_low_ns": (column["b_ns"] - column["r_high_ns"]).sum(),
        "p_high_ns": (column["b_ns"] - column["r_low_ns"]).sum(),
    }
    known = clocks[:, :, 0] != NOT_RECORDED
    for index, (part, length) in enumerate(zip(_PARTS, lengths, strict=True)):
        sums[f"{part}_ns"] = length.sum()
        sums[f"{part}_unknown_ns"] = length[~known[:, index]].sum()
    of_clocks = np.where(known[:, :, None], clocks, 0).sum(axis=0)
    assert of_clocks.size == CLOCK_SUMS
    return np.concatenate([np.array([int(sums[name]) for name in LANE_SUMS], "<i8"), of_clocks.ravel().astype("<i8")])
