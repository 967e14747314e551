"""Epochs as slices of their lane: device empty, device busy, picked up late; an arrow from first enqueue to drain."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ingero.events import CLOCK_COLUMNS, EpochFlag
from ingero.serve.export.model import Args, Flow, Slice, Value
from ingero.serve.export.tracks import Tracks
from ingero.store.names import Names
from ingero.store.stream_rows import EpochRow
from ingero.store.streams import Streams

CATEGORY, PART_CATEGORY = "epoch", "epoch_part"
EMPTY, BUSY, LATE = "E: device empty", "X: device busy", "P: picked up late"

_DEFAULT_STREAM = 0x80_0000_0000_0001  # the lane of a device's default stream; above it the number of the device
_STREAM_BITS = 56


def epoch_slices(streams: Streams, tracks: Tracks, names: Names, arrows: count[int]) -> Iterator[Slice | Flow]:
    """A slice per epoch and per part of it that took time."""
    for row in streams.epochs():
        end_ns = row.b_ns
        start_ns = end_ns - row.e_ns - row.x_ns - row.p_ns
        track = tracks.lane(
            tracks.process(row.session, row.process, row.pid), _title(row), start_ns=start_ns, end_ns=end_ns
        )
        name = f"epoch until {names.ops.get((row.source, row.op)) or 'a drain'}"
        yield Slice(track, start_ns, end_ns - start_ns, name, CATEGORY, tuple(_args(row, names)))
        parts = ((EMPTY, row.e_ns, "empty"), (BUSY, row.x_ns, "enqueue"), (LATE, row.p_ns, "drain"))
        for title, length_ns, clocks in parts:
            if length_ns > 0:
                yield Slice(track, start_ns, length_ns, title, PART_CATEGORY, _clocks(row, clocks))
            start_ns += length_ns
        yield from _launch_to_sync(row, streams, tracks, arrows)


def _launch_to_sync(row: EpochRow, streams: Streams, tracks: Tracks, arrows: count[int]) -> Iterator[Flow]:
    """Only where both calls have a row."""
    enqueued_ns = streams.first_enqueue(row)
    if enqueued_ns is None or row.drain_start_ns is None:
        return
    launcher = tracks.thread_of(row.session, row.process, row.pid, row.f_tid, "")
    waiter = tracks.thread_of(row.session, row.process, row.pid, row.b_tid, "")
    yield Flow(next(arrows), "launch to sync", launcher.number, enqueued_ns, waiter.number, row.drain_start_ns)


def _title(row: EpochRow) -> str:
    device = f"device {max(row.device, 0)}"
    if row.stream & (1 << _STREAM_BITS) - 1 == _DEFAULT_STREAM:
        return f"{device}, default stream: epochs"
    return f"{device}, stream {row.stream & (1 << 64) - 1:#x}: epochs"


def _args(row: EpochRow, names: Names) -> Iterator[tuple[str, Value]]:
    yield "e_ns", row.e_ns
    yield "x_ns", row.x_ns
    yield "p_ns", row.p_ns
    yield "launches", row.launches
    if row.bytes:
        yield "bytes", row.bytes
    if row.op_set:
        yield "operations", names.text(row.op_set)
    flags = ", ".join(one.name.lower() for one in EpochFlag if row.flags & one and one.name)
    if flags:
        yield "flags", flags


def _clocks(row: EpochRow, part: str) -> Args:
    """What the draining thread did meanwhile; while the device was busy, the enqueuing thread until the drain began."""
    values = ((f"{part}_{clock}", getattr(row, f"{part}_{clock}")) for clock in CLOCK_COLUMNS)
    return tuple((name, value) for name, value in values if value)
