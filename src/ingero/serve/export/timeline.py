"""A recording as one stream of tracks, slices, counters and flows; every timeline format is written from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from ingero.serve.export.calls import call_slices
from ingero.serve.export.findings import (
    chain_slices,
    coverage_slices,
    drop_slices,
    in_flight_slices,
    incident_slices,
)
from ingero.serve.export.model import Counter, Flow, Item, Slice
from ingero.serve.export.steps import step_slices
from ingero.serve.export.sync_intervals import interval_slices
from ingero.serve.export.system import gpu_counters, in_flight_counters, machine_counters, thread_counters
from ingero.serve.export.threads import offcpu_slices
from ingero.serve.export.tracks import Tracks
from ingero.store.streaming.names import Names
from ingero.store.streaming.streams import Streams

# Called now and then with what is being read, and which share of the window is done.
Progress = Callable[[str, float], None]

_REPORT_EVERY = 8192


def timeline(
    streams: Streams, progress: Progress, *, numbers: Iterator[int] | None = None, arrows: count[int] | None = None
) -> Iterator[Item]:
    """Everything recorded, one kind after the other, each in the order of time; a track comes before its first use.

    numbers, arrows: numbers of tracks and arrows, shared by several timelines of one trace.
    """
    names = Names(streams.reader)
    tracks = Tracks(streams.reader, names, numbers)
    arrows = arrows or count(1)
    parts: tuple[tuple[str, Iterator[Slice | Counter | Flow]], ...] = (
        ("incidents", incident_slices(streams, tracks)),
        ("causal chains", chain_slices(streams, tracks)),
        ("calls", call_slices(streams, tracks, names)),
        ("in-flight calls", in_flight_slices(streams, tracks, names)),
        ("off-CPU", offcpu_slices(streams, tracks, names, arrows)),
        ("steps", step_slices(streams, tracks, names)),
        ("sync intervals", interval_slices(streams, tracks, names, arrows)),
        ("machine", machine_counters(streams, tracks)),
        ("GPUs", gpu_counters(streams, tracks)),
        ("threads", thread_counters(streams, tracks)),
        ("calls in flight", in_flight_counters(streams, tracks)),
        ("drops", drop_slices(streams, tracks)),
        ("coverage", coverage_slices(streams, tracks)),
    )
    for title, items in parts:
        progress(title, 0)
        yield from _with_tracks(items, tracks, title, streams, progress)
        progress(title, 1)


def _with_tracks(
    items: Iterator[Slice | Counter | Flow], tracks: Tracks, title: str, streams: Streams, progress: Progress
) -> Iterator[Item]:
    begin_ns, length_ns = streams.window.begin_ns, max(1, streams.window.duration_ns)
    until_report = _REPORT_EVERY
    for item in items:
        if tracks.new:
            yield from tracks.new
            tracks.new.clear()
        yield item
        until_report -= 1
        if until_report == 0:
            until_report = _REPORT_EVERY
            at_ns = item.start_ns if isinstance(item, Slice) else begin_ns
            progress(title, min(1.0, max(0.0, (at_ns - begin_ns) / length_ns)))
