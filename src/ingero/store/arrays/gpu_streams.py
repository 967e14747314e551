"""The sync intervals of every stream in short form: from their digests, or from the rows where there are none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import apsw
import numpy as np
import numpy.typing as npt

from ingero.step_counts import How
from ingero.store.arrays import arrays
from ingero.store.arrays.sync_interval_digest import gpu_stream_sync_intervals
from ingero.store.records import Window
from ingero.store.vocabulary import STATES

_Key: TypeAlias = "tuple[int, int, int, int]"
_GPU_STREAM = "process, pid, device, stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStream:
    """One stream in a window. sync_intervals: `arrays.GPU_STREAM_DTYPE`, by end; is_steps: they are `store.steps`."""

    process: int
    pid: int
    device: int
    stream: int
    sync_intervals: npt.NDArray[np.void]
    is_steps: bool = False

    @property
    def noun(self) -> str:
        """The noun for one of the stream's intervals."""
        return (How.REPETITION if self.is_steps else How.SYNC).noun


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStreamSums:
    """The exact sums of one stream. sums: by name of `arrays.GPU_STREAM_SUMS`; states_ns: by part and clock."""

    process: int
    pid: int
    device: int
    stream: int
    sums: dict[str, int]
    states_ns: npt.NDArray[np.int64]


def has_digests(db: apsw.Connection, window: Window) -> bool:
    """Whether the sync intervals of a window have digests: not in files that were recorded before there were any."""
    if not list(db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'raw_sync_interval_digest'")):
        return False
    return bool(list(db.execute(f"SELECT 1 FROM raw_sync_interval_digest WHERE {_TOUCHES} LIMIT 1", _times(window))))


def read_gpu_streams(db: apsw.Connection, window: Window) -> list[GpuStream]:
    """The streams that have sync intervals that ended in the window."""
    found = _of_digests(db, window) if has_digests(db, window) else _of_rows(db, window)
    gpu_streams = []
    for (process, pid, device, stream), sync_intervals in found.items():
        inside = (sync_intervals["sync_end_ns"] >= window.begin_ns) & (sync_intervals["sync_end_ns"] < window.end_ns)
        mine = sync_intervals if inside.all() else sync_intervals[inside]
        if len(mine):
            gpu_streams.append(
                GpuStream(process=process, pid=pid, device=device, stream=stream, sync_intervals=_in_order(mine))
            )
    return gpu_streams


def read_gpu_stream_sums(db: apsw.Connection, window: Window) -> list[GpuStreamSums]:
    """The sums of the digests that touch the window: at its edges they reach up to one commit further."""
    sums: dict[_Key, list[bytes]] = defaultdict(list)
    sql = f"SELECT {_GPU_STREAM}, sums FROM raw_sync_interval_digest WHERE {_TOUCHES}"
    for *key, blob in _rows(db, sql, window):
        sums[tuple(key)].append(blob)
    found = []
    width = len(arrays.GPU_STREAM_SUMS)
    for (process, pid, device, stream), blobs in sums.items():
        total = np.frombuffer(b"".join(blobs), "<i8").reshape(len(blobs), -1).sum(axis=0)
        found.append(
            GpuStreamSums(
                process=process,
                pid=pid,
                device=device,
                stream=stream,
                sums=dict(zip(arrays.GPU_STREAM_SUMS, total[:width].tolist(), strict=True)),
                states_ns=total[width:].reshape(-1, len(STATES)),
            )
        )
    return found


_TOUCHES = "end_ns >= :begin AND begin_ns < :end"


def _of_digests(db: apsw.Connection, window: Window) -> dict[_Key, npt.NDArray[np.void]]:
    packed: dict[_Key, list[tuple[bytes, str]]] = defaultdict(list)
    sql = f"SELECT {_GPU_STREAM}, packed, step_types FROM raw_sync_interval_digest WHERE {_TOUCHES} ORDER BY id"
    for process, pid, device, stream, blob, classes in _rows(db, sql, window):
        packed[process, pid, device, stream].append((blob, classes))
    texts = {text for rows in packed.values() for _, classes in rows for text in classes.split("\n")}
    numbers = {"": 0} | {text: number for text in texts for (number,) in _number(db, text)}
    return {key: gpu_stream_sync_intervals(rows, lambda text: numbers.get(text, 0)) for key, rows in packed.items()}


def _of_rows(db: apsw.Connection, window: Window) -> dict[_Key, npt.NDArray[np.void]]:
    rows: dict[_Key, list[Sequence[int]]] = defaultdict(list)
    sql = (
        f"SELECT {_GPU_STREAM}, {arrays.GPU_STREAM_COLUMNS} FROM raw_sync_intervals "
        "WHERE sync_end_ns >= :begin AND sync_end_ns < :end"
    )
    for process, pid, device, stream, *numbers in _rows(db, sql, window):
        rows[process, pid, device, stream].append(numbers)
    return {key: arrays.gpu_stream(mine) for key, mine in rows.items()}


def _in_order(sync_intervals: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    ends = sync_intervals["sync_end_ns"]
    return sync_intervals if (ends[1:] >= ends[:-1]).all() else sync_intervals[np.argsort(ends, kind="stable")]


def _number(db: apsw.Connection, text: str) -> list[tuple[Any, ...]]:
    return list(db.execute("SELECT string FROM raw_strings WHERE text = ?", (text,)))


def _times(window: Window) -> dict[str, int]:
    return {"begin": window.begin_ns, "end": window.end_ns}


def _rows(db: apsw.Connection, sql: str, window: Window) -> list[tuple[Any, ...]]:
    return list(db.execute(sql, _times(window)))
