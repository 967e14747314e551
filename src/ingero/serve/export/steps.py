"""Steps as slices on a track of their process, with the time its thread was blocked on the GPU by kind of call."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.events import BLOCKED_KINDS, SyncIntervalFlag
from ingero.serve.export.model import Slice, Value
from ingero.serve.export.rows import Neighbors
from ingero.serve.export.tracks import Tracks
from ingero.step_counts import How
from ingero.store.streaming.names import Names
from ingero.store.streaming.stream_rows import StepRow
from ingero.store.streaming.streams import Streams

CATEGORY = "step"


def step_slices(streams: Streams, tracks: Tracks, names: Names) -> Iterator[Slice]:
    """A slice per step. A process without steps has only the sync intervals of its streams."""
    neighbors = Neighbors()
    for row in streams.steps():
        start_ns = neighbors.begin((row.process,), row.start_ns, row.end_ns)
        how = How.of(names.text(row.how))
        process = tracks.process(row.session, row.process, row.pid)
        title = f"steps, {how.words}" if how.words else "steps, by GPU syncs"
        track = tracks.gpu_stream(process, title, start_ns=start_ns, end_ns=row.end_ns, can_nest=False)
        name = f"step: {names.text(row.step_type)}"
        yield Slice(track, start_ns, row.end_ns - start_ns, name, CATEGORY, tuple(_args(row, names, how)))


def _args(row: StepRow, names: Names, how: How) -> Iterator[tuple[str, Value]]:
    yield "how", how.value
    if marker := names.ops.get((row.source, row.op)):
        yield "marker_op", marker
    if not row.flags & SyncIntervalFlag.LAUNCHES_UNSEEN:
        yield "launches", row.launches
    for name in ("copies", "collectives", "syncs", "host_to_gpu_bytes", "gpu_to_host_bytes"):
        if value := getattr(row, name):
            yield name, value
    blocked = {kind: getattr(row, f"blocked_{kind}_ns") for kind in BLOCKED_KINDS}
    yield "blocked_ns", sum(blocked.values())
    for kind, ns in blocked.items():
        if ns:
            yield f"blocked_{kind}_ns", ns
    flags = ", ".join(
        one.name.lower()
        for one in SyncIntervalFlag
        if row.flags & one and one is not SyncIntervalFlag.STEP and one.name
    )
    if flags:
        yield "flags", flags
