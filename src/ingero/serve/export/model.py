"""The parts of a timeline: tracks with slices, counters and flows on them. Every timeline format writes these."""

from __future__ import annotations

import enum

import msgspec


class Address(int):
    """A number that people read in hexadecimal."""


Value = int | float | str
Args = tuple[tuple[str, Value], ...]


class TrackKind(enum.Enum):
    """Kind of a track. GROUP: a heading; GPU_STREAM: slices of something that is no thread."""

    GROUP = enum.auto()
    PROCESS = enum.auto()
    THREAD = enum.auto()
    GPU_STREAM = enum.auto()
    COUNTER = enum.auto()


class Unit(enum.Enum):
    """Unit of a counter."""

    COUNT = ""
    BYTES = "bytes"
    PERCENT = "%"


class Machine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A machine of a timeline. number: its index, from 0. ahead_ns: how far its clock is ahead of the first one's."""

    number: int
    name: str
    kernel: str = ""
    cpus: int = 0
    ahead_ns: int = 0


class Track(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A track; it comes before anything on it. pid and tid: of processes and threads, unique in this timeline.

    parent: number of the track it belongs under, 0: of none. order: its place among its siblings.
    """

    number: int
    kind: TrackKind
    name: str
    parent: int = 0
    pid: int = 0
    tid: int = 0
    order: int = 0
    unit: Unit = Unit.COUNT
    command: str = ""


class Slice(msgspec.Struct, frozen=True, gc=False):
    """Something that took time on a track; with duration 0, an instant. Slices of one track nest, or lie apart.

    arrow_out, arrow_in: number of the arrow that leaves or reaches its begin, 0: none.
    """

    track: int
    start_ns: int
    duration_ns: int
    name: str
    category: str
    args: Args = ()
    severity: str = ""
    arrow_out: int = 0
    arrow_in: int = 0


class Counter(msgspec.Struct, frozen=True, gc=False):
    """The value of a counter from a time on."""

    track: int
    time_ns: int
    value: float


class Flow(msgspec.Struct, frozen=True, gc=False):
    """An arrow between slices of two threads: from the slice around one time to the slice around another."""

    number: int
    name: str
    from_track: int
    from_ns: int
    to_track: int
    to_ns: int


Item = Track | Slice | Counter | Flow
