"""Writes a timeline as a Perfetto trace: TrackEvent packets with interned strings.

Source: protos/perfetto/trace/*.proto and protos/perfetto/trace/track_event/*.proto of Perfetto 52.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ingero.serve.export.model import Address, Counter, Flow, Machine, Slice, Track, TrackKind, Unit, Value
from ingero.serve.export.wire import double, message, number, tag, text, varint, varint63

_SEQUENCE_ID = 10  # TracePacket.trusted_packet_sequence_id
_CLEARED, _NEEDS_STATE = number(13, 1), number(13, 2)  # TracePacket.sequence_flags
_REALTIME, _BOOTTIME = 1, 6  # BuiltinClock
_SYSTEM_INFO, _MACHINE_ID, _REMOTE_CLOCK_SYNC = 45, 98, 107  # of TracePacket
_DEFAULTS = message(59, number(58, _REALTIME))  # TracePacket.trace_packet_defaults.timestamp_clock_id

_PACKET = tag(1, 2)  # Trace.packet
_TIMESTAMP = tag(8, 0)
_EVENT = tag(11, 2)  # TracePacket.track_event
_BEGIN, _END, _INSTANT, _COUNTER = (number(9, kind) for kind in (1, 2, 3, 4))  # TrackEvent.type
_DOUBLE_VALUE = 44  # TrackEvent.double_counter_value
_COUNTER_VALUE = 30
_ANNOTATION = tag(4, 2)  # TrackEvent.debug_annotations
_SEVERITY = 53  # TrackEvent.correlation_id_str: slices with one text have one color
_ARROW_OUT, _ARROW_IN = tag(47, 1), tag(48, 1)  # TrackEvent.flow_ids, terminating_flow_ids
_FIXED64 = struct.Struct("<Q")
_INT_VALUE = tag(4, 0)  # DebugAnnotation.int_value
_UNITS = {Unit.BYTES: number(3, 3), Unit.COUNT: number(3, 2), Unit.PERCENT: text(6, "%")}  # CounterDescriptor

# Kinds of interned strings: fields of InternedData, and the field of the text in an entry.
_CATEGORIES, _EVENT_NAMES, _ANNOTATION_NAMES, _STRINGS = (1, 2), (2, 2), (3, 2), (29, 2)

# Beyond this much, all interned texts are forgotten and sent anew when used again: memory stays bounded.
_MAX_INTERNED_BYTES = 16 << 20
_ENTRY_BYTES = 200  # of a dictionary's entry with its key


class PerfettoWriter:
    """Encodes items of one machine into packets; `write` gets the bytes. A trace of several has a writer for each."""

    def __init__(
        self,
        write: Callable[[bytes], object],
        begin_ns: int,
        *,
        machine: Machine | None = None,
        most_interned_bytes: int = _MAX_INTERNED_BYTES,
    ) -> None:
        self._write = write
        self._most_interned_bytes = most_interned_bytes
        self.packets = 0
        place = machine.number if machine else 0
        self._machine = number(_MACHINE_ID, place) if place else b""  # the first is the one that needs no number
        self._sequence = number(_SEQUENCE_ID, 2 * place + 1)
        # else events of no thread would be taken for the last described thread's
        self._of_tracks = number(_SEQUENCE_ID, 2 * place + 2) + self._machine
        self._stated = self._sequence + _NEEDS_STATE + self._machine
        self._in_sequence = self._stated + _EVENT
        self._tracks: dict[int, bytes] = {}
        self._ends: dict[int, bytes] = {}
        self._forget()
        self._packet(message(6, _clocks(begin_ns) + number(2, _REALTIME)) + self._sequence + self._machine)
        if machine:
            self._describe(machine, begin_ns)
        self._clear()

    def _describe(self, machine: Machine, begin_ns: int) -> None:
        """SystemInfo of a machine, and its clock's offset from that of the first machine."""
        system = text(1, "Linux") + text(3, machine.kernel) if machine.kernel else b""
        cpus = number(8, machine.cpus) if machine.cpus else b""
        about = message(_SYSTEM_INFO, message(1, system) + cpus + text(17, machine.name))
        self._packet(about + self._sequence + self._machine)
        if machine.number:
            synced = message(1, message(2, _clocks(begin_ns)) + message(3, _clocks(begin_ns - machine.ahead_ns)))
            self._packet(message(_REMOTE_CLOCK_SYNC, 2 * synced) + self._sequence + self._machine)

    def _clear(self) -> None:
        self._packet(self._sequence + _CLEARED + _DEFAULTS + self._machine)

    def track(self, track: Track) -> None:
        """Write a TrackDescriptor."""
        self._tracks[track.number] = number(11, track.number)  # TrackEvent.track_uuid
        self._ends[track.number] = self._stated + self._event(_END + self._tracks[track.number])
        self._packet(message(60, _descriptor(track)) + self._of_tracks)

    def slice(self, item: Slice) -> None:
        """Write begin and end of a slice, or an instant."""
        if self._interned_bytes > self._most_interned_bytes:
            self._forget()
            self._clear()
        track, start_ns, duration_ns = item.track, item.start_ns, item.duration_ns
        head = self._heads.get((item.name, item.category)) or self._head(item.name, item.category)
        known = self._args
        args = b"".join([known.get(arg) or self._arg(*arg) for arg in item.args])
        if item.severity:
            args += text(_SEVERITY, item.severity)
        if item.arrow_out:
            args += _ARROW_OUT + _FIXED64.pack(item.arrow_out)
        if item.arrow_in:
            args += _ARROW_IN + _FIXED64.pack(item.arrow_in)
        event = (_BEGIN if duration_ns else _INSTANT) + self._tracks[track] + head + args
        self._packet(_TIMESTAMP + varint63(start_ns) + self._in_sequence + varint(len(event)) + event)
        if duration_ns:
            self._packet(_TIMESTAMP + varint63(start_ns + duration_ns) + self._ends[track])

    def counter(self, item: Counter) -> None:
        """Write a value of a counter track."""
        value = number(_COUNTER_VALUE, item.value) if isinstance(item.value, int) else double(_DOUBLE_VALUE, item.value)
        self._timed(item.time_ns, self._event(_COUNTER + self._tracks[item.track] + value))

    def flow(self, item: Flow) -> None:
        """Write both ends of an arrow, each bound to the slice open on its track then (LegacyEvent, phases s and f)."""
        head = self._heads.get((item.name, "flow")) or self._head(item.name, "flow")
        for track, time_ns, phase in ((item.from_track, item.from_ns, "s"), (item.to_track, item.to_ns, "f")):
            legacy = message(6, number(2, ord(phase)) + number(6, item.number) + number(12, 1))
            self._timed(time_ns, self._event(self._tracks[track] + head + legacy))

    def finish(self) -> None:
        """Do nothing: a trace has no end mark."""

    def _timed(self, time_ns: int, event: bytes) -> None:
        self._packet(_TIMESTAMP + varint63(time_ns) + self._stated + event)

    @staticmethod
    def _event(content: bytes) -> bytes:
        return _EVENT + varint(len(content)) + content

    def _packet(self, body: bytes) -> None:
        self.packets += 1
        self._write(_PACKET + varint(len(body)) + body)

    def _head(self, name: str, category: str) -> bytes:
        head = number(3, self._intern(_CATEGORIES, category)) + number(10, self._intern(_EVENT_NAMES, name))
        self._heads[name, category] = head
        return head

    def _arg(self, name: str, value: Value) -> bytes:
        """A DebugAnnotation. Encoded texts and addresses are cached, because they repeat."""
        head = self._names.get(name) or self._name(name)
        if isinstance(value, (str, Address)):
            content = head + (number(7, value) if isinstance(value, int) else number(17, self._intern(_STRINGS, value)))
            self._interned_bytes += _ENTRY_BYTES
            self._args[name, value] = kept = _ANNOTATION + varint(len(content)) + content
            return kept
        content = head + (_INT_VALUE + varint(value) if isinstance(value, int) else double(5, value))
        return _ANNOTATION + varint(len(content)) + content

    def _name(self, name: str) -> bytes:
        if name not in self._names:
            self._names[name] = number(1, self._intern(_ANNOTATION_NAMES, name))
        return self._names[name]

    def _intern(self, kind: tuple[int, int], value: str) -> int:
        known = self._interned.get((kind, value))
        if known:
            return known
        self._interned_bytes += len(value) + _ENTRY_BYTES
        self._interned[kind, value] = known = len(self._interned) + 1
        entry = message(kind[0], number(1, known) + text(kind[1], value, keeps_lines=kind is _STRINGS))
        self._packet(message(12, entry) + self._stated)
        return known

    def _forget(self) -> None:
        self._interned: dict[tuple[tuple[int, int], str], int] = {}
        self._interned_bytes = 0
        self._heads: dict[tuple[str, str], bytes] = {}
        self._names: dict[str, bytes] = {}
        self._args: dict[tuple[str, Value], bytes] = {}


def _clocks(time_ns: int) -> bytes:
    """The clocks of a machine at one time: ClockSnapshot.clocks."""
    return b"".join(message(1, number(1, clock) + number(2, time_ns)) for clock in (_REALTIME, _BOOTTIME))


def _descriptor(track: Track) -> bytes:
    parent = number(5, track.parent) if track.parent and track.kind is not TrackKind.THREAD else b""
    is_heading = track.kind in (TrackKind.GROUP, TrackKind.PROCESS)
    order = number(12, track.order) + (
        number(11, 3) if is_heading else b""
    )  # 3: its children by their sibling_order_rank
    content = number(1, track.number) + parent + order
    if track.kind is TrackKind.PROCESS:
        command = b"".join(text(2, part) for part in track.command.split())
        return content + message(3, number(1, track.pid) + command + text(6, track.name) + number(3, track.order))
    if track.kind is TrackKind.THREAD:
        return content + message(4, number(1, track.pid) + number(2, track.tid) + text(5, track.name))
    if track.kind is TrackKind.COUNTER:
        return content + text(2, track.name) + message(8, _UNITS[track.unit])
    return content + text(2, track.name)
