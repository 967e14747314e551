"""Digests of a stream's sync intervals: the columns needed to find lost time, and exact sums of the rest.

A digest is written in the transaction that stores its sync intervals, one row per stream and commit. Rows of
raw_sync_intervals take 300 bytes each and are read one by one; an hour of them takes ten seconds, an hour of digests a
fraction of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ingero.store.arrays.arrays import GPU_STREAM_DTYPE, GPU_STREAM_SUMS, NOT_RECORDED, STATE_SUMS
from ingero.store.vocabulary import STATE_COLUMNS, SyncIntervalFlag
from ingero.store.writing import tables
from ingero.store.writing.tables import Row

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# As packed: b = a + e + x + p, f = a + e, s = f + enqueue, r = f + x. class: index in the row's `step_types`.
_PACKED = np.dtype(
    [
        (name, "<i8")
        for name in ("prev_sync_end_ns", "idle_ns", "launch_ns", "busy_ns", "return_delay_ns", "idle_sleep_ns")
    ]
    + [("prev_sync_tid", "<i4"), ("launches", "<u4"), ("flags", "<u2"), ("class", "<u2")]
)
_COLUMNS = {name: index for index, name in enumerate(tables.SYNC_INTERVALS.columns)}
_GPU_STREAM = [_COLUMNS[name] for name in ("session", "process", "pid", "device", "stream")]
_TIMES = (
    "prev_sync_end_ns",
    "first_launch_ns",
    "sync_start_ns",
    "gpu_done_ns",
    "gpu_done_low_ns",
    "gpu_done_high_ns",
    "sync_end_ns",
    "idle_ns",
    "busy_ns",
    "return_delay_ns",
)
_COUNTS = ("launches", "bytes", "step_type", "prev_sync_tid", "flags")
_PARTS = ("idle", "launch", "sync")
_NUMBERS = [_COLUMNS[name] for name in (*_TIMES, *_COUNTS)]
_CLOCKS = [_COLUMNS[f"{part}_{clock}"] for part in _PARTS for clock in STATE_COLUMNS]
_SLEEP = STATE_COLUMNS.index("sleep_ns")
_MAX_LAUNCHES = 2**32 - 1


def digest_rows(sync_intervals: Sequence[Row], text_of: Callable[[int], str]) -> list[Row]:
    """raw_sync_interval_digest of these rows of raw_sync_intervals: a row per stream. text_of: of a class's number."""
    gpu_streams: dict[Row, list[Row]] = defaultdict(list)
    for row in sync_intervals:
        gpu_streams[tuple(row[index] for index in _GPU_STREAM)].append(row)
    return [_row(gpu_stream, mine, text_of) for gpu_stream, mine in gpu_streams.items()]


def gpu_stream_sync_intervals(
    rows: Sequence[tuple[bytes, str]], number_of: Callable[[str], int]
) -> npt.NDArray[np.void]:
    """Sync intervals of (packed, classes) of one stream's digests as `GPU_STREAM_DTYPE`. number_of: of a class text."""
    packed = np.frombuffer(b"".join(blob for blob, _ in rows), _PACKED)
    numbers = {classes: [number_of(text) for text in classes.split("\n")] for classes in {row[1] for row in rows}}
    every = np.array([number for _, classes in rows for number in numbers[classes]], np.int64)
    firsts = np.cumsum([0, *(len(numbers[classes]) for _, classes in rows)])[:-1]  # of each row in `every`
    lengths = [len(blob) // _PACKED.itemsize for blob, _ in rows]
    return _unpacked(packed, every[np.repeat(firsts, lengths) + packed["class"]])


def _unpacked(packed: Array, classes: Array) -> npt.NDArray[np.void]:
    gpu_stream = np.zeros(len(packed), GPU_STREAM_DTYPE)
    for name in (
        "prev_sync_end_ns",
        "idle_ns",
        "busy_ns",
        "return_delay_ns",
        "idle_sleep_ns",
        "prev_sync_tid",
        "launches",
        "flags",
    ):
        gpu_stream[name] = packed[name]
    gpu_stream["step_type"] = classes
    gpu_stream["first_launch_ns"] = gpu_stream["prev_sync_end_ns"] + gpu_stream["idle_ns"]
    gpu_stream["sync_start_ns"] = gpu_stream["first_launch_ns"] + packed["launch_ns"]
    gpu_stream["gpu_done_ns"] = gpu_stream["first_launch_ns"] + gpu_stream["busy_ns"]
    gpu_stream["sync_end_ns"] = gpu_stream["gpu_done_ns"] + gpu_stream["return_delay_ns"]
    return gpu_stream


def _row(gpu_stream: Row, sync_intervals: Sequence[Row], text_of: Callable[[int], str]) -> Row:
    session, process, pid, device, stream = gpu_stream
    table = np.array([[row[index] for index in _NUMBERS] for row in sync_intervals], np.int64)
    column = {name: table[:, index] for index, name in enumerate((*_TIMES, *_COUNTS))}
    clocks = np.array(
        [[NOT_RECORDED if row[index] is None else row[index] for index in _CLOCKS] for row in sync_intervals], np.int64
    ).reshape(len(sync_intervals), len(_PARTS), len(STATE_COLUMNS))
    keys, classes = np.unique(column["step_type"], return_inverse=True)
    packed = np.zeros(len(sync_intervals), _PACKED)
    for name in ("prev_sync_end_ns", "idle_ns", "busy_ns", "return_delay_ns", "prev_sync_tid", "flags"):
        packed[name] = column[name]
    packed["launches"] = np.minimum(column["launches"], _MAX_LAUNCHES)
    packed["launch_ns"] = column["sync_start_ns"] - column["first_launch_ns"]
    packed["idle_sleep_ns"] = clocks[:, 0, _SLEEP]
    packed["class"] = classes
    (row,) = tables.SYNC_INTERVAL_DIGEST.rows(
        1,
        session=session,
        process=process,
        pid=pid,
        device=device,
        stream=stream,
        begin_ns=int(column["prev_sync_end_ns"].min()),
        end_ns=int(column["sync_end_ns"].max()),
        sync_intervals=len(sync_intervals),
        step_types="\n".join(text_of(int(key)) for key in keys),
        packed=packed.tobytes(),
        sums=_sums(column, clocks).tobytes(),
    )
    return row


def _sums(column: dict[str, Array], clocks: Array) -> Array:
    """Sums in the order of GPU_STREAM_SUMS, then the thread-state times of the parts."""
    lengths = (
        column["idle_ns"],
        column["sync_start_ns"] - column["first_launch_ns"],
        column["sync_end_ns"] - column["sync_start_ns"],
    )
    sums = {
        "sync_intervals": len(column["prev_sync_end_ns"]),
        "incomplete": np.count_nonzero(column["flags"] & int(SyncIntervalFlag.INCOMPLETE)),
        "launches": column["launches"].sum(),
        "bytes": column["bytes"].sum(),
        "wall_ns": (column["sync_end_ns"] - column["prev_sync_end_ns"]).sum(),
        "busy_ns": column["busy_ns"].sum(),
        "return_delay_ns": column["return_delay_ns"].sum(),
        "return_delay_low_ns": (column["sync_end_ns"] - column["gpu_done_high_ns"]).sum(),
        "return_delay_high_ns": (column["sync_end_ns"] - column["gpu_done_low_ns"]).sum(),
    }
    known = clocks[:, :, 0] != NOT_RECORDED
    for index, (part, length) in enumerate(zip(_PARTS, lengths, strict=True)):
        sums[f"{part}_ns"] = length.sum()
        sums[f"{part}_unknown_ns"] = length[~known[:, index]].sum()
    of_clocks = np.where(known[:, :, None], clocks, 0).sum(axis=0)
    assert of_clocks.size == STATE_SUMS
    return np.concatenate(
        [np.array([int(sums[name]) for name in GPU_STREAM_SUMS], "<i8"), of_clocks.ravel().astype("<i8")]
    )
