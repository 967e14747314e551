"""Reads SQLite exports of Nsight Systems, 2021 to 2026: CUDA calls, GPU activities and NVTX ranges of each process.

Source: "SQLite Schema Reference" of the Nsight Systems user guide. Columns were added over time (globalPid, srcKind,
greenContextId), so each is optional. A globalTid is process << 24 | thread, and its process << 24 a globalPid. Times
count from the start of the session, whose date is in TARGET_INFO_SESSION_START_TIME.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ingero.events import HostMemory
from ingero.profiles.api_names import op_id
from ingero.profiles.assembly import Parts, assign, profile_of
from ingero.profiles.clocks import UNDATED_NS, undated
from ingero.profiles.columns import Table, Texts
from ingero.profiles.model import (
    ACTIVITY_DTYPE,
    CALL_DTYPE,
    MAX_DURATION_NS,
    MAX_SIZE_BYTES,
    NO_CORRELATION,
    NO_TIME,
    RANGE_DTYPE,
    UNKNOWN,
    ActivityKind,
    Direction,
    Gpu,
    Notes,
    Origin,
    Profile,
)
from ingero.profiles.range_names import nvtx_range
from ingero.profiles.sqlite_file import Cell, SqliteFile, text, whole

_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"  # of the driver, too
_WORK = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid"]
_ACTIVITIES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ActivityKind.KERNEL,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ActivityKind.KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": ActivityKind.MEMCPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": ActivityKind.MEMSET,
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": ActivityKind.SYNC,
}
_GRAPH_NAME = "CUDA graph"
_STREAM_WAIT = 2  # CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT: only a stream waits, no thread
_NO_STREAM = 0xFFFFFFFF  # CUPTI_SYNCHRONIZATION_INVALID_VALUE
_RANGES = frozenset({59, 60, 70, 71})  # NvtxPushPopRange, NvtxStartEndRange, and those of the NVTX text format
_THREAD_MASK = (1 << 24) - 1
# CUpti_ActivityMemcpyKind
_DIRECTIONS = {1: Direction.HOST_TO_GPU, 2: Direction.GPU_TO_HOST, 3: Direction.HOST_TO_GPU, 4: Direction.GPU_TO_HOST}
_DIRECTIONS |= dict.fromkeys((5, 6, 7, 8, 10, 13), Direction.GPU_TO_GPU)
_DIRECTIONS |= {9: Direction.HOST_TO_HOST, 11: Direction.HOST_TO_GPU, 12: Direction.GPU_TO_HOST}
_MEMORY = {0: HostMemory.PAGEABLE, 1: HostMemory.PINNED}  # CUpti_ActivityMemoryKind
_HOST = "Hostname", "OsDescription", "NvDriverVersion", "CudaDriverVersion", "CpuCores"


# Tables that are not imported: they say when a thread ran and which system call it made, not why it did not run.
_LEFT_OUT = {
    "SCHED_EVENTS": "left out, scheduler events: they do not say what a thread waited for",
    "OSRT_API": "left out, calls of the operating system's libraries",
}


def is_nsight(file: SqliteFile) -> bool:
    """Whether the file is an SQLite export of Nsight Systems."""
    return file.has("StringIds", "id", "value") and (file.has(_CALLS) or file.has("CUPTI_ACTIVITY_KIND_KERNEL"))


class _Reader:
    """Reads the rows of one file; their `pid` is globalPid >> 24 until `read_nsight` splits them by process."""

    def __init__(self, file: SqliteFile, notes: Notes) -> None:
        self.file, self.notes = file, notes
        self.texts = Texts(notes.dropped)
        self.calls = Table(CALL_DTYPE, notes.dropped)
        self.activities = Table(ACTIVITY_DTYPE, notes.dropped)
        self.ranges = Table(RANGE_DTYPE, notes.dropped)
        self._strings = self._read_strings()

    def _read_strings(self) -> dict[int, str]:
        """The texts that names of calls, kernels, threads and ranges refer to; an export has many more of samples."""
        users = [(_CALLS, "nameId"), ("NVTX_EVENTS", "textId"), ("ThreadNames", "nameId")]
        users += [("CUPTI_ACTIVITY_KIND_KERNEL", name) for name in ("demangledName", "shortName")]
        used = {whole(cell) for table, column in users for (cell,) in self.file.rows(table, [column], self.notes)}
        rows = self.file.rows("StringIds", ["id", "value"], self.notes)
        return {number: text(value) for cell, value in rows if (number := whole(cell)) in used and number is not None}

    def string(self, cell: Cell) -> str:
        """The text behind a number."""
        number = whole(cell)
        return self._strings.get(number, "") if number is not None else ""

    def read_calls(self) -> None:
        """CUDA calls, each with its version in its name."""
        columns = ["start", "end", "globalTid", "correlationId", "nameId"]
        for start, end, owner, correlation, name in self.file.rows(_CALLS, columns, self.notes):
            times, thread = self._times(start, end), whole(owner)
            if times is not None:
                called = self.string(name)
                place = (*times, _process(thread), (thread or 0) & _THREAD_MASK)
                number = whole(correlation)
                what = (op_id(called), self.texts.number(called), NO_CORRELATION if number is None else number)
                self.calls.add((*place, *what, UNKNOWN, UNKNOWN, 0, 0, 0, 0, 0))

    def read_activities(self) -> None:
        """GPU activities."""
        more = ["demangledName", "shortName", "bytes", "copyKind", "srcKind", "dstKind", "syncType"]
        for table, kind in _ACTIVITIES.items():
            for row in self.file.rows(table, [*_WORK, *more], self.notes):
                self._activity(kind, row, _GRAPH_NAME if table.endswith("GRAPH_TRACE") else "")

    def _activity(self, kind: ActivityKind, row: tuple[Cell, ...], fallback: str) -> None:
        start, end, device, stream, correlation, owner, name, short, size, copy, source, destination, sync = row
        times = self._times(start, end)
        if times is None or (kind is ActivityKind.SYNC and whole(sync) == _STREAM_WAIT):
            return
        number, on, where = whole(stream), whole(device), whole(correlation)
        stream_number = UNKNOWN if number is None or number in (_NO_STREAM, -1) else number
        called = self.string(name) or self.string(short) or fallback
        place = (*times, _process(whole(owner)), on if on is not None and 0 <= on < 1 << 16 else UNKNOWN, stream_number)
        what = (NO_CORRELATION if where is None else where, int(kind), self.texts.number(called))
        is_copy = kind is ActivityKind.MEMCPY
        direction = int(_DIRECTIONS.get(whole(copy) or 0, Direction.UNKNOWN)) if is_copy else 0
        memory = _host_memory(direction, whole(source), whole(destination)) if is_copy else 0
        self.activities.add(
            (*place, *what, min(max(0, whole(size) or 0), MAX_SIZE_BYTES), direction, memory, 0, UNKNOWN)
        )

    def read_ranges(self) -> None:
        """NVTX ranges; marks and names are left out."""
        columns = ["start", "end", "eventType", "text", "textId", "globalTid"]
        for start, end, kind, given, given_id, owner in self.file.rows("NVTX_EVENTS", columns, self.notes):
            if end is None or whole(kind) not in _RANGES:
                continue
            times, thread = self._times(start, end), whole(owner)
            if times is not None:
                what, name = nvtx_range(text(given) or self.string(given_id))
                place = (*times, _process(thread), (thread or 0) & _THREAD_MASK)
                self.ranges.add((*place, int(what), self.texts.number(name)))

    def _times(self, start: Cell, end: Cell) -> tuple[int, int] | None:
        begin, done = whole(start), whole(end)
        if begin is None or done is None or not -UNDATED_NS < begin <= done <= begin + MAX_DURATION_NS:
            self.notes.dropped[NO_TIME] += 1
            return None
        return begin, done


def read_nsight(file: SqliteFile, notes: Notes) -> list[Profile]:
    """The profile of each process of the file that used a GPU."""
    reader = _Reader(file, notes)
    reader.read_calls()
    reader.read_activities()
    reader.read_ranges()
    for table, remark in _LEFT_OUT.items():
        notes.remarks[remark] += sum(1 for _ in file.rows(table, ["start"], notes))
    parts = Parts(calls=reader.calls.rows(), activities=reader.activities.rows(), ranges=reader.ranges.rows())
    if parts.is_empty:
        return []
    owners = np.unique(np.concatenate([parts.calls["pid"], parts.activities["pid"]])).tolist()
    owners = [owner for owner in owners if owner > 0] or [0]
    if (parts.activities["pid"] <= 0).all():  # until 2022 there was no globalPid
        assign(parts)
    parts.activities["pid"][parts.activities["pid"] <= 0] = owners[0]
    shift = _shift_ns(file, notes)
    parts.shift(shift)
    names, threads = _process_names(file, notes), _thread_names(reader)
    facts: dict[str, Any] = {"origin": _origin(file, notes, shift != UNDATED_NS), "is_pytorch": False}
    facts |= {"gpus": _gpus(file, notes), "texts": reader.texts.all()}
    found = []
    for owner in owners:
        known = {"pid": owner & _THREAD_MASK, "name": names.get(owner) or "process", "threads": threads.get(owner, {})}
        found.append(profile_of(parts.of_process(owner), notes, **facts, **known))
    return found


def _process(owner: int | None) -> int:
    return owner >> 24 if owner is not None and owner > 0 else 0


def _host_memory(direction: int, source: int | None, destination: int | None) -> int:
    """The kind of host memory of a copy."""
    kind = source if direction == Direction.HOST_TO_GPU else destination if direction == Direction.GPU_TO_HOST else None
    return int(_MEMORY.get(kind, HostMemory.UNKNOWN)) if kind is not None else int(HostMemory.UNKNOWN)


def _shift_ns(file: SqliteFile, notes: Notes) -> int:
    for (cell,) in file.rows("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"], notes):
        unix_ns = whole(cell)
        if unix_ns is not None and UNDATED_NS < unix_ns < 3 * UNDATED_NS:  # until 2065
            return unix_ns
    notes.lacks.append(undated(file.name))
    return UNDATED_NS


def _process_names(file: SqliteFile, notes: Notes) -> dict[int, str]:
    rows = file.rows("PROCESSES", ["globalPid", "name"], notes)
    return {_process(whole(owner)): text(name) for owner, name in rows}


def _thread_names(reader: _Reader) -> dict[int, dict[int, str]]:
    found: dict[int, dict[int, str]] = {}
    for owner, name in reader.file.rows("ThreadNames", ["globalTid", "nameId"], reader.notes):
        thread, called = whole(owner), reader.string(name)
        if thread is not None and called:
            found.setdefault(_process(thread), {})[thread & _THREAD_MASK] = called
    return found


def _origin(file: SqliteFile, notes: Notes, has_unix_times: bool) -> Origin:
    rows = file.rows("TARGET_INFO_SYSTEM_ENV", ["name", "value"], notes)
    environment: Mapping[str, str] = {name: text(value) for cell, value in rows if (name := text(cell)) in _HOST}
    cores = environment.get("CpuCores", "")
    return Origin(
        tool="Nsight Systems",
        file=file.name,
        host=environment.get("Hostname", ""),
        os_release=environment.get("OsDescription", ""),
        cpu_count=int(cores) if cores.isascii() and cores.isdigit() and len(cores) < 6 else 0,
        gpu_driver=environment.get("NvDriverVersion", ""),
        has_unix_times=has_unix_times,
    )


def _gpus(file: SqliteFile, notes: Notes) -> tuple[Gpu, ...]:
    """The GPUs of the host, without the ordinals in a process, which may see only a part of them."""
    found = []
    for number, name, memory, uuid, bus in file.rows(
        "TARGET_INFO_GPU", ["id", "name", "totalMemory", "uuid", "busLocation"], notes
    ):
        index, size = whole(number) or 0, whole(memory) or 0
        uuid_text = text(uuid)
        name_of_uuid = f"GPU-{uuid_text}" if uuid_text else ""
        found.append(Gpu(UNKNOWN, text(name), max(size, 0), name_of_uuid, text(bus), index))
    return tuple(found[:1024])
