"""The profile of one process, independent of the tool: calls, GPU activities, ranges and stacks.

Times are ns: unix time once a reader is done. Columns `name` and `function` hold indexes into `texts`.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ingero.errors import IngeroError

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

NO_OP = -1  # a call that is not in ops.py
UNKNOWN = -1  # a device or stream that the file does not name
NO_CORRELATION = -1

NO_TIME = "without a usable time"  # a reason to drop a record
# Bounds of one record's numbers, so that sums of many fit into 64 bits: a profile lasts minutes, a GPU has 200 GB.
MAX_DURATION_NS = 7 * 24 * 3600 * 1_000_000_000
MAX_SIZE_BYTES = 1 << 48

# op: Op.id. device, stream, function, bytes, direction and host_memory (events.HostMemory) are those of the activity
# that the call enqueued; stack: an index into `stacks`, 0 = none.
CALL_DTYPE = np.dtype(
    [
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("pid", "i8"),
        ("tid", "i8"),
        ("op", "i2"),
        ("name", "i4"),
        ("correlation", "i8"),
        ("device", "i4"),
        ("stream", "i8"),
        ("function", "i4"),
        ("bytes", "i8"),
        ("direction", "i1"),
        ("host_memory", "i1"),
        ("stack", "i4"),
    ]
)
# call_ns: start of the call that enqueued it, 0 = not in the file. group: index into `groups`, -1 = none.
ACTIVITY_DTYPE = np.dtype(
    [
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("pid", "i8"),
        ("device", "i4"),
        ("stream", "i8"),
        ("correlation", "i8"),
        ("kind", "i1"),
        ("name", "i4"),
        ("bytes", "i8"),
        ("direction", "i1"),
        ("host_memory", "i1"),
        ("call_ns", "i8"),
        ("group", "i4"),
    ]
)
RANGE_DTYPE = np.dtype(
    [("start_ns", "i8"), ("end_ns", "i8"), ("pid", "i8"), ("tid", "i8"), ("kind", "i1"), ("name", "i4")]
)
FRAME_DTYPE = np.dtype([("start_ns", "i8"), ("end_ns", "i8"), ("pid", "i8"), ("tid", "i8"), ("name", "i4")])


class ActivityKind(enum.IntEnum):
    """The kind of a GPU activity. The names, in lower case, are published."""

    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    SYNC = 4


class Direction(enum.IntEnum):
    """The direction of a copy. The names, in lower case, are published."""

    UNKNOWN = 0
    HOST_TO_GPU = 1
    GPU_TO_HOST = 2
    GPU_TO_GPU = 3
    HOST_TO_HOST = 4


class RangeKind(enum.IntEnum):
    """The kind of a user range. The names, in lower case, are published."""

    STEP = 1
    DATA_LOADING = 2
    RANGE = 3
    OPERATOR = 4


class ProfileError(IngeroError):
    """A file cannot be imported."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack: a Python function (line 0: not known), or a native function (empty file)."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate with each other, as one process knows them. ranks: empty where not known."""

    name: str
    ranks: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a profile. ordinal: CUDA's index in the process, or UNKNOWN; uuid: "" if not known."""

    ordinal: int
    name: str
    memory_bytes: int = 0
    uuid: str = ""
    pci_bus_id: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The origin of a profile. has_unix_times: False where the file has no date."""

    tool: str
    file: str
    host: str = ""
    os_release: str = ""
    cpu_count: int = 0
    gpu_driver: str = ""
    cuda_ver: str = ""
    has_unix_times: bool = True


@dataclass(kw_only=True, slots=True)
class Notes:
    """Remarks of an import about its files.

    dropped: records that could not be used, by reason. remarks: records that are not stored as they are, by reason.
    lacks: sentences about missing data.
    """

    dropped: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)
    lacks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One process of a profile. rank, world_size: None where the file does not say; threads: names by tid.

    nested: number of calls inside other calls by op; these are not in `calls`. stacks: the first is empty.
    """

    origin: Origin
    pid: int
    name: str
    rank: int | None = None
    world_size: int | None = None
    calls: Array
    activities: Array
    ranges: Array
    texts: tuple[str, ...]
    threads: dict[int, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    groups: tuple[Group, ...] = ()
    stacks: tuple[tuple[Frame, ...], ...] = ((),)
    nested: dict[int, int] = field(default_factory=dict)
    has_python_stacks: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it has a time of its own: no call, activity or range."""
        return not self._timed

    @property
    def begin_ns(self) -> int:
        """The start of the first call, activity or range."""
        return min(int(rows["start_ns"].min()) for rows in self._timed)

    @property
    def end_ns(self) -> int:
        """The end of the last call, activity or range."""
        return max(int(rows["end_ns"].max()) for rows in self._timed)

    @property
    def _timed(self) -> list[Array]:
        return [rows for rows in (self.calls, self.activities, self.ranges) if len(rows)]
