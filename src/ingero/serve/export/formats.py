"""The formats of `ingero export`, and how a recording is written in each."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from ingero.errors import IngeroError
from ingero.serve.backlog import Sink
from ingero.serve.export.chrome import ChromeWriter
from ingero.serve.export.flamegraph import Weight, write_flamegraph
from ingero.serve.export.model import Counter, Flow, Item, Machine, Slice, Track
from ingero.serve.export.perfetto import PerfettoWriter
from ingero.serve.export.pprof import PprofWriter
from ingero.serve.export.samples import samples
from ingero.serve.export.timeline import Progress, timeline
from ingero.store.records import NodeClock, Window
from ingero.store.streaming.streams import Streams
from ingero.units import format_bytes, format_count, format_moment

_MIN_BYTES, _MAX_GROWTH = 64 << 20, 16  # JSON of honest recordings is one to three times as large


class Format(enum.Enum):
    """A format of an export."""

    PERFETTO = "perfetto"
    CHROME = "chrome"
    FLAMEGRAPH = "flamegraph"
    PPROF = "pprof"


class NothingRecordedError(IngeroError):
    """The window has no rows that this format can show."""

    def __init__(self, window: Window, whole: Window, pid: int | None, *, of_what: str = "nothing") -> None:
        of_process = f" of process {pid}" if pid else ""
        asked = f"{_span(window)}{of_process}"
        super().__init__(
            f"{of_what} was recorded from {asked}",
            hint=f"the recording reaches from {_span(whole)}: "
            "choose within it with --from and --to, or leave out all three",
        )


class TooLargeError(IngeroError):
    """The export would be much larger than any of a recording that a program has made."""

    def __init__(self, recording: Path, most_bytes: int) -> None:
        super().__init__(
            f"the export of {recording} becomes larger than {format_bytes(most_bytes)}, which no recording of its size "
            "has in it: its texts are long and repeated",
            hint="check who made it; --since, --from and --to export a part",
        )


def _span(window: Window) -> str:
    begin, end = (format_moment(at, of_ns=window.duration_ns) for at in (window.begin_ns, window.end_ns))
    return f"{begin} to {end}"


@dataclass(slots=True)
class Written:
    """What was written, by kind."""

    slices: int = 0
    counters: int = 0
    flows: int = 0
    tracks: int = 0
    packets: int = 0
    stacks: int = 0

    @property
    def text(self) -> str:
        """The counts as text."""
        parts = ((self.slices, "slices"), (self.counters, "counter values"), (self.flows, "flows"))
        shown = [f"{format_count(count)} {what}" for count, what in parts if count]
        shown += [f"{format_count(self.stacks)} stacks"] if self.stacks else []
        return ", ".join(shown) + (f" on {format_count(self.tracks)} tracks" if self.tracks else "")


def export(
    streams: Streams,
    whole: Window,
    form: Format,
    file: Sink,
    *,
    weight: Weight,
    progress: Progress,
) -> Written:
    """Write the recorded rows of a window.

    Raises:
        NothingRecordedError: there are none.
        NoBreakdownError: the weight wants what these calls do not have.
        TooLargeError: it becomes much larger than the recording.
    """
    first_ns = streams.first_ns()
    if first_ns is None:
        raise NothingRecordedError(streams.window, whole, streams.pid)
    write = _in_proportion(file.write, streams.reader.path)
    if form is Format.PERFETTO:
        return _machines(write, streams, progress)
    if form is Format.CHROME:
        return _timeline(ChromeWriter(write, first_ns), timeline(streams, progress), Written())
    progress("stacks", 0)
    written = Written(stacks=_profile(streams, form, write, weight))
    if not written.stacks:
        is_offcpu = form is Format.FLAMEGRAPH and weight is Weight.OFFCPU
        of_what = "no call that was off the CPU" if is_offcpu else "no call"
        raise NothingRecordedError(streams.window, whole, streams.pid, of_what=of_what)
    progress("stacks", 1)
    return written


def _in_proportion(write: Callable[[bytes], object], recording: Path) -> Callable[[bytes], object]:
    """Write up to a limit in proportion to the recording's size: texts are repeated with every call that has them."""
    files = (recording, recording.with_name(f"{recording.name}-wal"))
    most_bytes = _MIN_BYTES + _MAX_GROWTH * sum(file.stat().st_size for file in files if file.exists())
    written_bytes = 0

    def write_some(data: bytes) -> object:
        nonlocal written_bytes
        written_bytes += len(data)
        if written_bytes > most_bytes:
            raise TooLargeError(recording, most_bytes)
        return write(data)

    return write_some


def _machines(write: Callable[[bytes], object], streams: Streams, progress: Progress) -> Written:
    """One machine per node, one after the other: a reader of a node does not see other nodes' pids, threads and times.

    Where clocks were compared, times are those of the first such node, if they were compared with one clock.
    """
    nodes, clocks = streams.reader.nodes(), streams.reader.node_clocks()
    written, numbers, arrows, places = Written(), count(1), count(1), count()
    right: NodeClock | None = None
    for node in nodes:
        with _of_node(streams, node, is_only=len(nodes) < 2) as own:
            first_ns = own.first_ns()
            if first_ns is None:
                continue
            mine = clocks.get(node)
            right = right or mine
            ahead_ns = mine.offset_ns - right.offset_ns if mine and right and mine.reference == right.reference else 0
            machine = _machine(own, node, next(places), ahead_ns)

            def report(title: str, share: float, node: str = node) -> None:
                progress(f"{node}: {title}" if len(nodes) > 1 else title, share)

            items = timeline(own, report, numbers=numbers, arrows=arrows)
            _timeline(PerfettoWriter(write, first_ns, machine=machine), items, written)
    return written


@contextmanager
def _of_node(streams: Streams, node: str, *, is_only: bool) -> Iterator[Streams]:
    if is_only:
        yield streams
        return
    with streams.reader.of_node(node) as reader:
        yield Streams(reader, streams.window, pid=streams.pid)


def _machine(streams: Streams, node: str, number: int, ahead_ns: int) -> Machine:
    session = streams.reader.sessions()[-1]
    return Machine(
        number=number, name=node or "machine", kernel=session.kernel, cpus=session.cpu_count, ahead_ns=ahead_ns
    )


def _timeline(writer: PerfettoWriter | ChromeWriter, items: Iterator[Item], written: Written) -> Written:
    """Write timeline items, and count them in `written`."""
    for item in items:
        if isinstance(item, Slice):
            written.slices += 1
            written.flows += item.arrow_out > 0
            writer.slice(item)
        elif isinstance(item, Counter):
            written.counters += 1
            writer.counter(item)
        elif isinstance(item, Flow):
            written.flows += 1
            writer.flow(item)
        elif isinstance(item, Track):
            written.tracks += 1
            writer.track(item)
    writer.finish()
    written.packets += writer.packets
    return written


def _profile(streams: Streams, form: Format, write: Callable[[bytes], object], weight: Weight) -> int:
    if form is Format.FLAMEGRAPH:
        return write_flamegraph(samples(streams), weight, write)
    profile = PprofWriter(write, streams.window, has_breakdown=not streams.reader.older_version)
    profile.write(samples(streams))
    profile.finish()
    return profile.count
