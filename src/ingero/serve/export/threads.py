"""Recorded intervals off the CPU as slices beside their thread, with an arrow from the thread that ended the sleep."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from ingero.events import STATE_TEXTS, THREAD_STATES, WAKER_KINDS
from ingero.serve.export.model import Args, Slice, Value
from ingero.serve.export.tracks import Tracks
from ingero.store.streaming.names import Names
from ingero.store.streaming.stream_rows import OffCpuRow
from ingero.store.streaming.streams import Streams

CATEGORY, RUNNABLE_CATEGORY, WAKE_CATEGORY = "offcpu", "offcpu_runnable", "wake"

_UNKNOWN = "off the CPU (why was not recorded)"
_NAMES = {number: STATE_TEXTS.get(name, name) for number, name in enumerate(THREAD_STATES)}
_RUNNABLE = STATE_TEXTS["runq"]
_THREAD = WAKER_KINDS.index("thread")


def offcpu_slices(streams: Streams, tracks: Tracks, names: Names, arrows: count[int]) -> Iterator[Slice]:
    """A slice per interval; inside it the part after the wake-up, when the thread could have run."""
    for row in streams.offcpu():
        end_ns = row.start_ns + row.duration_ns
        thread = tracks.thread(row)
        track = tracks.off_cpu(thread, row.start_ns, end_ns)
        arrow = next(arrows) if _was_woken_by_thread(row, end_ns) else 0
        is_split = row.start_ns < row.woken_ns < end_ns
        name = _UNKNOWN if row.state is None else _NAMES.get(row.state, str(row.state))
        if arrow:
            yield _wake(row, arrow, tracks, names)
        args = _args(row, names)
        yield Slice(track, row.start_ns, row.duration_ns, name, CATEGORY, args, arrow_in=0 if is_split else arrow)
        if is_split:
            length_ns = end_ns - row.woken_ns
            yield Slice(track, row.woken_ns, length_ns, _RUNNABLE, RUNNABLE_CATEGORY, arrow_in=arrow)


def _was_woken_by_thread(row: OffCpuRow, end_ns: int) -> bool:
    return row.waker_kind == _THREAD and row.waker_tid != 0 and 0 < row.woken_ns < end_ns


def _wake(row: OffCpuRow, arrow: int, tracks: Tracks, names: Names) -> Slice:
    track = tracks.waker(row.session, row.waker_tid, names.text(row.waker_name), row.woken_ns)
    args = (("tid", row.tid), ("pid", row.pid))
    return Slice(track, row.woken_ns, 0, "wakes another thread", WAKE_CATEGORY, args, arrow_out=arrow)


def _args(row: OffCpuRow, names: Names) -> Args:
    args: list[tuple[str, Value]] = []
    if row.culprit_pid:
        args.append(("culprit", f"{names.text(row.culprit_name)} [{row.culprit_pid}]"))
        args.append(("culprit_ns", row.culprit_ns))
    if row.waker_kind:
        by = f"{names.text(row.waker_name)} [{row.waker_tid}]" if row.waker_tid else WAKER_KINDS[row.waker_kind]
        args.append(("woken_by", by))
    if row.cpu >= 0:
        args.append(("cpu", row.cpu))
    return tuple(args)
