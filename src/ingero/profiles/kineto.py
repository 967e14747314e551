"""Reads traces of PyTorch's profiler (Kineto): JSON of every age, as an object or an array of events.

Source: libkineto/src/output_json.cpp of pytorch/kineto, and files from 2021 to 2025. Until 2022 categories were called
Runtime, Kernel, Memcpy and Operator, and times were whole us of the unix clock; since 2024 they count from
`baseTimeNanoseconds`. PyTorch on AMD writes names of HIP, and the correlation in `External id`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ingero.events import HostMemory
from ingero.profiles import xprof
from ingero.profiles.api_names import op_id
from ingero.profiles.columns import Table, Texts, cleaned
from ingero.profiles.json_events import EventSplitter
from ingero.profiles.kineto_event import (
    CALL_ARGS,
    GPU_ARGS,
    NAME_ARGS,
    Event,
    GpuArgs,
    Number,
    decode_event,
    integer,
    properties_of,
    time_ns,
)
from ingero.profiles.kineto_groups import Groups
from ingero.profiles.kineto_process import processes_of
from ingero.profiles.model import (
    ACTIVITY_DTYPE,
    CALL_DTYPE,
    FRAME_DTYPE,
    MAX_DURATION_NS,
    MAX_SIZE_BYTES,
    NO_CORRELATION,
    NO_OP,
    NO_TIME,
    RANGE_DTYPE,
    UNKNOWN,
    ActivityKind,
    Direction,
    Notes,
    Profile,
    ProfileError,
    RangeKind,
)
from ingero.profiles.range_names import range_kind

NO_EVENT = "not a JSON event"
UNREADABLE_ARGS = "with arguments that cannot be read"

_CALLS = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver", "privateuse1_runtime"})
_ACTIVITIES = {
    "kernel": ActivityKind.KERNEL,
    "gpu_memcpy": ActivityKind.MEMCPY,
    "gpu_memset": ActivityKind.MEMSET,
    "cuda_sync": ActivityKind.SYNC,
    "Kernel": ActivityKind.KERNEL,
    "Memcpy": ActivityKind.MEMCPY,
    "Memset": ActivityKind.MEMSET,
}
_OPERATORS = frozenset({"cpu_op", "Operator"})
_WITH_GPU = "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
# A wait of a stream for an event is done by the GPU and costs no time by itself.
_NO_HOST_WAIT = "Stream Wait Event"
# Memcpy HtoD (Pageable -> Device), CopyHostToDevice
_DIRECTIONS = (
    (("HtoD", "HostToDevice", "HtoA"), Direction.HOST_TO_GPU),
    (("DtoH", "DeviceToHost", "AtoH"), Direction.GPU_TO_HOST),
    (("DtoD", "DeviceToDevice", "PtoP", "PeerToPeer", "AtoA", "AtoD", "DtoA"), Direction.GPU_TO_GPU),
    (("HtoH", "HostToHost"), Direction.HOST_TO_HOST),
)


class KinetoReader:
    """Collects the events of one file."""

    def __init__(self, notes: Notes) -> None:
        dropped = notes.dropped
        self.dropped = dropped
        self.texts = Texts(dropped)
        self.calls = Table(CALL_DTYPE, dropped)
        self.activities = Table(ACTIVITY_DTYPE, dropped)
        self.ranges = Table(RANGE_DTYPE, dropped)
        self.frames = Table(FRAME_DTYPE, dropped)
        self.call_stacks = Table(FRAME_DTYPE, dropped)
        self.groups = Groups()
        self.process_names: dict[int, str] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.properties: dict[str, Any] = {}
        self.events = 0
        self.is_xprof = False

    def add(self, event: Event) -> None:
        """Keeps an event of a known kind."""
        if event.ph == "M":
            self._metadata(event)
            return
        if event.ph != "X":
            return
        add = self._reader_of(event.cat) if event.cat is not None else self._uncategorized
        if add is None or (event.cat is None and not self.process_names):
            return
        begin, lasting = time_ns(event.ts), time_ns(event.dur) if bytes(event.dur) else 0
        if begin is None or lasting is None or lasting > MAX_DURATION_NS:
            self.dropped[NO_TIME] += 1
            return
        self.events += 1
        try:
            add(event, begin, begin + lasting)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.dropped[UNREADABLE_ARGS] += 1

    def _reader_of(self, category: str) -> Callable[[Event, int, int], None] | None:
        if category in _CALLS:
            return self._call
        if category in _ACTIVITIES:
            return self._activity
        if category in _OPERATORS:
            return self._operator
        return {"user_annotation": self._range, "python_function": self._frame}.get(category)

    def _call(self, event: Event, begin: int, end: int) -> None:
        args = CALL_ARGS.decode(event.args)
        name = event.name or ""
        correlation = _first(args.correlation, args.external_id)
        place = (begin, end, _number(event.pid), _number(event.tid))
        rest = (UNKNOWN, UNKNOWN, 0, 0, 0, 0, 0)
        self.calls.add((*place, op_id(cleaned(name)), self.texts.number(name), correlation, *rest))

    def _activity(self, event: Event, begin: int, end: int) -> None:
        args = GPU_ARGS.decode(event.args)
        kind = _ACTIVITIES[event.cat or ""]
        if args.sync_kind == _NO_HOST_WAIT:
            return
        name = event.name or ""
        is_copy = kind is ActivityKind.MEMCPY
        row = (begin, end, 0, *self._stream(event, args, kind), _first(args.correlation, args.external_id), int(kind))
        what = (self.texts.number(name), min(max(0, integer(args.size, 0)), MAX_SIZE_BYTES))
        where = (direction_of(name), host_memory_of(name)) if is_copy else (0, 0)
        group = self.groups.number(args) if args.collective or args.group_name is not None else UNKNOWN
        self.activities.add((*row, *what, *where, 0, group))

    def _stream(self, event: Event, args: GpuArgs, kind: ActivityKind) -> tuple[int, int]:
        device = _small(integer(args.device, integer(event.pid, UNKNOWN)))
        stream = args.stream if args.stream is not None else str(event.tid).removeprefix("stream ")
        if kind is ActivityKind.SYNC and args.wait_on_stream is not None:
            stream = args.wait_on_stream
        number = integer(stream, UNKNOWN)
        return device, (UNKNOWN if number in (-1, 0xFFFFFFFF) else number)

    def _operator(self, event: Event, begin: int, end: int) -> None:
        name = event.name or ""
        pid, tid = _number(event.pid), _number(event.tid)
        kind = range_kind(name)
        if kind is RangeKind.RANGE:
            kind = RangeKind.OPERATOR
        self.ranges.add((begin, end, pid, tid, int(kind), self.texts.number(name)))
        if event.cat == "Operator" and b'"Call stack"' in bytes(event.args):  # until 2022; then python_function
            stack = NAME_ARGS.decode(event.args).call_stack
            if stack:
                self.call_stacks.add((begin, end, pid, tid, self.texts.number(stack)))

    def _range(self, event: Event, begin: int, end: int) -> None:
        name = event.name or ""
        place = (begin, end, _number(event.pid), _number(event.tid))
        self.ranges.add((*place, int(range_kind(name)), self.texts.number(name)))

    def _frame(self, event: Event, begin: int, end: int) -> None:
        name = self.texts.number(event.name or "")
        self.frames.add((begin, end, _number(event.pid), _number(event.tid), name))

    def _uncategorized(self, event: Event, begin: int, end: int) -> None:
        """Keeps an event of XProf, if it is one."""
        pid, tid, name = _number(event.pid), _number(event.tid), event.name or ""
        what, device, stream = xprof.event_type_of(
            self.process_names.get(pid, ""), self.thread_names.get((pid, tid), "")
        )
        if what is xprof.EventType.NOTHING:
            return
        args, place = GPU_ARGS.decode(event.args), (begin, end, pid, tid)
        correlation, op = _first(args.correlation_id), op_id(cleaned(name))
        if what is xprof.EventType.ACTIVITY:
            self.is_xprof = True
            kind, plain_name = xprof.kind_of(name), xprof.copy_name(name)
            size, memory = xprof.details_of(args.memcpy_details)
            copied = (size, direction_of(plain_name), memory) if kind is ActivityKind.MEMCPY else (0, 0, 0)
            where = (begin, end, 0, device, stream, correlation, int(kind), self.texts.number(plain_name))
            self.activities.add((*where, *copied, 0, UNKNOWN))
        elif op != NO_OP:
            rest = (UNKNOWN, UNKNOWN, 0, 0, 0, 0, 0)
            self.calls.add((*place, op, self.texts.number(name), correlation, *rest))
        elif function := xprof.frame_name(name):
            self.frames.add((*place, self.texts.number(function)))
        else:
            marked = RangeKind.STEP if args.step_num is not None else range_kind(name)
            found = RangeKind.OPERATOR if marked is RangeKind.RANGE else marked
            self.ranges.add((*place, int(found), self.texts.number(name)))

    def _metadata(self, event: Event) -> None:
        if event.name not in ("process_name", "thread_name"):
            return
        try:
            name = NAME_ARGS.decode(event.args).name
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        pid = _number(event.pid)
        if name and event.name == "process_name":
            self.process_names[pid] = cleaned(name)
        elif name:
            self.thread_names[pid, _number(event.tid)] = cleaned(name)


def read_kineto(chunks: Iterable[bytes], file: str, notes: Notes) -> list[Profile]:
    """The processes of a file; nothing where it has no call and no GPU activity.

    chunks: the file; ends early where it is cut. notes: what was left out, and why.

    Raises:
        ProfileError: it is not a Kineto file, or has no GPU data.
    """
    reader, splitter = KinetoReader(notes), EventSplitter()
    for chunk in chunks:
        for data in splitter.feed(chunk):
            event = decode_event(data)
            if event is None:
                notes.dropped[NO_EVENT] += 1
            else:
                reader.add(event)
    if not splitter.is_complete:
        notes.lacks.append(f"{file} is cut after {reader.events:,} events: what came after them is not known")
    reader.properties = properties_of(splitter.properties)
    found = processes_of(reader, file, notes)
    if not found and not splitter.is_complete:
        raise ProfileError(f"{file} is cut before the first GPU call in it", hint="import the whole file")
    if not found and len(reader.ranges):
        raise ProfileError(f"{file} has operators of the CPU and no GPU call or activity", hint=_WITH_GPU)
    return found


def direction_of(name: str) -> int:
    """The direction of a copy (`Direction`), by its name."""
    return int(next((found for words, found in _DIRECTIONS if any(word in name for word in words)), Direction.UNKNOWN))


def host_memory_of(name: str) -> int:
    """The host memory of a copy (`HostMemory`), by its name: Memcpy HtoD (Pageable -> Device)."""
    if "Pageable" in name:
        return int(HostMemory.PAGEABLE)
    return int(HostMemory.PINNED if "Pinned" in name else HostMemory.UNKNOWN)


def _first(*values: Number) -> int:
    found = (integer(value, NO_CORRELATION) for value in values)
    return next((value for value in found if value > 0), NO_CORRELATION)


def _number(value: Number) -> int:
    """The number of a process or thread; texts get a hash, as where a tool has merged the files of all ranks."""
    number = integer(value, UNKNOWN)
    if number >= 0 or value is None:
        return max(number, 0)
    return zlib.crc32(str(value).encode("utf-8", "replace"))


def _small(value: int) -> int:
    return value if -1 <= value < 1 << 16 else UNKNOWN  # of devices there are at most hundreds
