"""Groups of calls whose probes are reduced or detached together."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from ingero.ops import BY_ID, OPS, Kind, Library, Op


class Group(enum.Enum):
    """Calls that are traced in the same way. The value is shown to users."""

    RUNTIME_LAUNCHES = "launches at the runtime"
    DRIVER_LAUNCHES = "launches at the driver"
    RUNTIME_EVENTS = "event records and stream waits at the runtime"
    DRIVER_EVENTS = "event records and stream waits at the driver"
    MEMORY = "allocations and frees"
    COPIES = "asynchronous copies and memsets"
    REST = "waits, blocking copies, graphs, collectives, loads"


class Coverage(enum.IntEnum):
    """What the probes of a group do, most first."""

    FULL = 0  # times from entry to return
    COUNTED = 1  # counted at entry, positions on streams kept, no durations
    NONE = 2  # not traced, and detached as soon as none of its calls is in flight


Coverages = Mapping[Group, Coverage]  # a group that is not in it has FULL

_OP_SET_WORDS = 4  # bpf/events.h, OP_SET_WORDS; numpy refuses another length
_EVENTS = Kind.EVENT_RECORD | Kind.STREAM_WAIT


def group_of(op: Op) -> Group:
    """The group of a traced call. Graph launches are rare and stand for many kernels each: they are never reduced."""
    is_runtime = op.library is Library.CUDART
    if op.library is Library.NCCL or op.kind & (Kind.SYNC | Kind.GRAPH):
        return Group.REST
    if op.kind & Kind.LAUNCH:
        return Group.RUNTIME_LAUNCHES if is_runtime else Group.DRIVER_LAUNCHES
    if op.kind & _EVENTS:
        return Group.RUNTIME_EVENTS if is_runtime else Group.DRIVER_EVENTS
    if op.kind & Kind.MEMORY:
        return Group.MEMORY
    return Group.COPIES if op.kind & Kind.COPY else Group.REST


GROUP_OF_OP: dict[int, Group] = {op.id: group_of(op) for op in OPS}


def group_of_cookie(cookie: int) -> Group:
    """The group of the call of an attach cookie; a cookie of no call is never reduced."""
    op = BY_ID.get(cookie & 0xFF)
    return GROUP_OF_OP[op.id] if op else Group.REST


def op_set(ops: Iterable[int]) -> list[int]:
    """A set of operation ids as `struct settings` has it."""
    found = [0] * _OP_SET_WORDS
    for op in ops:
        found[op >> 6] |= 1 << (op & 63)
    return found
