"""Reads RPD files of AMD's rocmProfileData: HIP calls, GPU operations and roctx ranges of each process.

Source: rocpd_python/rocpd/schema_data/tableSchema.cmd of ROCm/rocmProfileData. Times are ns of CLOCK_MONOTONIC, without
a date.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    Notes,
    Origin,
    Profile,
)
from ingero.profiles.range_names import range_kind
from ingero.profiles.sqlite_file import Cell, SqliteFile, text, whole

_MARKER = "UserMarker"  # the name under which roctx ranges are stored; their text is the argument
# The kind of an activity by the start of its type's name.
_KINDS = (
    ("Kernel", ActivityKind.KERNEL),
    ("Task", ActivityKind.KERNEL),
    ("Copy", ActivityKind.MEMCPY),
    ("Memcpy", ActivityKind.MEMCPY),
    ("Fill", ActivityKind.MEMSET),
    ("Memset", ActivityKind.MEMSET),
)
_DIRECTIONS = (
    ("HostToDevice", Direction.HOST_TO_GPU),
    ("DeviceToHost", Direction.GPU_TO_HOST),
    ("DeviceToDevice", Direction.GPU_TO_GPU),
)


def is_rpd(file: SqliteFile) -> bool:
    """Whether the file is an RPD file."""
    return file.has("rocpd_string", "id", "string") and file.has("rocpd_api", "id", "pid", "start", "end")


class _Reader:
    def __init__(self, file: SqliteFile, notes: Notes) -> None:
        self.file, self.notes = file, notes
        self.texts = Texts(notes.dropped)
        self.calls = Table(CALL_DTYPE, notes.dropped)
        self.activities = Table(ACTIVITY_DTYPE, notes.dropped)
        self.ranges = Table(RANGE_DTYPE, notes.dropped)
        rows = file.rows("rocpd_string", ["id", "string"], notes)
        self._strings = {whole(number): self.texts.number(text(value)) for number, value in rows}
        self._all = self.texts.all()

    def string(self, cell: Cell) -> tuple[int, str]:
        """The text behind a number, with its own number."""
        index = self._strings.get(whole(cell), 0)
        return index, self._all[index]

    def read_calls(self) -> None:
        """HIP calls and roctx ranges."""
        columns = ["id", "pid", "tid", "start", "end", "apiName_id", "args_id"]
        for number, pid, tid, start, end, name, arguments in self.file.rows("rocpd_api", columns, self.notes):
            times = self._times(start, end)
            if times is None:
                continue
            place = (*times, whole(pid) or 0, whole(tid) or 0)
            index, called = self.string(name)
            if called == _MARKER:
                marked, type_name = self.string(arguments)
                self.ranges.add((*place, int(range_kind(type_name)), marked))
            else:
                known = whole(number)
                correlation = NO_CORRELATION if known is None else known
                self.calls.add((*place, op_id(called), index, correlation, UNKNOWN, UNKNOWN, 0, 0, 0, 0, 0))

    def read_activities(self) -> None:
        """GPU activities, with the calls that enqueued them."""
        links = self.file.rows("rocpd_api_ops", ["api_id", "op_id"], self.notes)
        calls = {whole(op): whole(call) for call, op in links}
        copies = self.file.rows("rocpd_copyapi", ["api_ptr_id", "size", "pinned"], self.notes)
        copied = {whole(call): (size, pinned) for call, size, pinned in copies}
        columns = ["id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"]
        for number, *row in self.file.rows("rocpd_op", columns, self.notes):
            call = calls.get(whole(number))
            self._activity(row, call, copied.get(call, (None, None)))

    def _activity(self, row: Sequence[Cell], call: int | None, copied: tuple[Cell, Cell]) -> None:
        gpu, queue, start, end, description, kind = row
        index, type_name = self.string(kind)
        found = next((known for begin, known in _KINDS if type_name.startswith(begin)), None)
        times = self._times(start, end)
        if found is None or times is None:
            return
        is_copy = found is ActivityKind.MEMCPY
        size = min(max(0, whole(copied[0]) or 0), MAX_SIZE_BYTES) if is_copy else 0
        memory = HostMemory.PINNED if is_copy and whole(copied[1]) else HostMemory.UNKNOWN
        direction = next((int(known) for words, known in _DIRECTIONS if words in type_name), 0)
        device, stream = whole(gpu), whole(queue)
        on = device if device is not None and 0 <= device < 1 << 16 else UNKNOWN
        place = (*times, 0, on, UNKNOWN if stream is None else stream, NO_CORRELATION if call is None else call)
        name = self.string(description)[0] or index
        self.activities.add((*place, int(found), name, size, direction, int(memory), 0, UNKNOWN))

    def _times(self, start: Cell, end: Cell) -> tuple[int, int] | None:
        begin, done = whole(start), whole(end)
        if begin is None or done is None or not 0 <= begin <= done <= begin + MAX_DURATION_NS:
            self.notes.dropped[NO_TIME] += 1
            return None
        return begin, done


def read_rpd(file: SqliteFile, notes: Notes) -> list[Profile]:
    """The profile of each process of the file."""
    reader = _Reader(file, notes)
    reader.read_calls()
    reader.read_activities()
    parts = Parts(calls=reader.calls.rows(), activities=reader.activities.rows(), ranges=reader.ranges.rows())
    if parts.is_empty:
        return []
    notes.lacks.append(undated(file.name))
    parts.shift(UNDATED_NS)
    facts: dict[str, Any] = {"name": "process", "texts": reader.texts.all(), "is_pytorch": False}
    facts["origin"] = Origin(tool="RPD", file=file.name, has_unix_times=False)
    return [profile_of(parts.of_process(pid), notes, pid=pid, **facts) for pid in assign(parts)]
