"""Sync intervals as slices of their stream: GPU idle, busy, sync return delay; an arrow from first launch to sync."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ingero.events import STATE_COLUMNS, SyncIntervalFlag
from ingero.serve.export.model import Args, Flow, Slice, Value
from ingero.serve.export.rows import Neighbors
from ingero.serve.export.tracks import Tracks
from ingero.store.streaming.names import Names
from ingero.store.streaming.stream_rows import SyncIntervalRow
from ingero.store.streaming.streams import Streams

CATEGORY, PART_CATEGORY = "sync_interval", "sync_interval_part"
IDLE, BUSY, RETURN_DELAY = "GPU idle (nothing queued)", "GPU busy (work queued or running)", "sync return delay"

_DEFAULT_STREAM = 0x80_0000_0000_0001  # the stream of a device's default stream; above it the number of the GPU
_STREAM_BITS = 56


def interval_slices(streams: Streams, tracks: Tracks, names: Names, arrows: count[int]) -> Iterator[Slice | Flow]:
    """A slice per sync interval and per part of it that took time."""
    neighbors = Neighbors()
    for row in streams.sync_intervals():
        end_ns, part_ns = row.sync_end_ns, row.sync_end_ns - row.idle_ns - row.busy_ns - row.return_delay_ns
        start_ns = neighbors.begin((row.process, row.device, row.stream), part_ns, end_ns)
        track = tracks.gpu_stream(
            tracks.process(row.session, row.process, row.pid), _title(row), start_ns=start_ns, end_ns=end_ns
        )
        name = f"sync interval until {names.ops.get((row.source, row.op)) or 'a sync'}"
        yield Slice(track, start_ns, end_ns - start_ns, name, CATEGORY, tuple(_args(row, names)))
        parts = (
            (IDLE, row.idle_ns, "idle"),
            (BUSY, row.busy_ns, "launch"),
            (RETURN_DELAY, row.return_delay_ns, "sync"),
        )
        for title, length_ns, clocks in parts:
            begin_ns, part_ns = max(part_ns, start_ns), part_ns + length_ns
            if part_ns > begin_ns:
                yield Slice(track, begin_ns, part_ns - begin_ns, title, PART_CATEGORY, _clocks(row, clocks))
        yield from _launch_to_sync(row, streams, tracks, arrows)


def _launch_to_sync(row: SyncIntervalRow, streams: Streams, tracks: Tracks, arrows: count[int]) -> Iterator[Flow]:
    """An arrow from the first launch to the sync, if both calls have a row."""
    enqueued_ns = streams.first_enqueue(row)
    if enqueued_ns is None or row.recorded_sync_start_ns is None:
        return
    launcher = tracks.thread_of(row.session, row.process, row.pid, row.first_launch_tid, "")
    waiter = tracks.thread_of(row.session, row.process, row.pid, row.sync_tid, "")
    yield Flow(next(arrows), "launch to sync", launcher.number, enqueued_ns, waiter.number, row.recorded_sync_start_ns)


def _title(row: SyncIntervalRow) -> str:
    device = f"GPU {max(row.device, 0)}"
    if row.stream & (1 << _STREAM_BITS) - 1 == _DEFAULT_STREAM:
        return f"{device}, default stream: sync intervals"
    return f"{device}, stream {row.stream & (1 << 64) - 1:#x}: sync intervals"


def _args(row: SyncIntervalRow, names: Names) -> Iterator[tuple[str, Value]]:
    yield "idle_ns", row.idle_ns
    yield "busy_ns", row.busy_ns
    yield "return_delay_ns", row.return_delay_ns
    yield "launches", row.launches
    if row.bytes:
        yield "bytes", row.bytes
    if row.op_set:
        yield "operations", names.text(row.op_set)
    flags = ", ".join(one.name.lower() for one in SyncIntervalFlag if row.flags & one and one.name)
    if flags:
        yield "flags", flags


def _clocks(row: SyncIntervalRow, part: str) -> Args:
    """Thread-state time of the syncing thread; while the GPU was busy, of the launching thread until the sync began."""
    values = ((f"{part}_{clock}", getattr(row, f"{part}_{clock}")) for clock in STATE_COLUMNS)
    return tuple((name, value) for name, value in values if value)
