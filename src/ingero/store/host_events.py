"""Events of the host, one compact record each, decoded from the stored columns by kind of event."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ingero.events import HOST_MANY, MEMORY_LIMITS, HostFlag
from ingero.ops import HostOp, Source

SOURCES = (Source.HOST, Source.IO, Source.TCP, Source.NET)
_BLOCK_IO = int(Source.IO)
_BY_KTHREAD, _PAGE_FAULT = int(HostFlag.ISSUER_IS_KTHREAD), int(HostFlag.IN_PAGE_FAULT)  # enum members are slow
_ONE_OF_MANY = int(HostFlag.ONE_OF_MANY)
_CONTINUES = (signal.SIGCONT, signal.SIGKILL)
_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvent:
    """One event of the host; None where a field does not apply or is not known.

    duration_ns: of block I/O in the device, of reclaim and compaction, of a stop until the process continued or died.
    process, pid, tid, comm: the process that caused the event or that it happened to: the issuer of block I/O, the
        receiver of a signal, the process whose allocation led to an OOM kill. Where `other_pid` is set, comm is its
        name: of the sender of a signal, or the affected process of an OOM kill.
    other_pid: sender, affected process, or the child of a fork.
    code: the number of a signal; the exit code of an exit, negative if a signal ended the process.
    size_bytes: bytes moved, freed or lost; the affected process's resident memory in an OOM kill.
    limit: which memory was short in reclaim and OOM kills, "host" or "cgroup".
    stands_for: how many requests this one represents, for block I/O of processes that are not traced.
    queue_ns: time before the device got the block I/O. device: dev_t. segments: TCP. addresses: "source > destination".
    """

    start_ns: int
    duration_ns: int | None
    source: Source
    op: int
    name: str
    process: int | None
    pid: int
    tid: int
    comm: str
    cgroup_id: int
    other_pid: int | None = None
    code: int | None = None
    size_bytes: int | None = None
    limit: str | None = None
    device: int | None = None
    sector: int | None = None
    queue_ns: int | None = None
    segments: int | None = None
    ports: tuple[int, int] | None = None
    addresses: str = ""
    is_kernel_thread: bool = False
    is_page_fault: bool = False
    stands_for: int = 1


SQL = (
    "SELECT e.start_ns, e.duration_ns, e.source, e.op, coalesce(o.name, e.source || '/' || e.op), e.process, e.pid, "
    "e.tid, coalesce(c.text, nullif(e.comm, 0), ''), e.cgroup_id, e.arg0, e.arg1, e.arg2, e.flags, e.queue_ns, "
    "coalesce(d.text, '') FROM raw_events e LEFT JOIN ops o ON o.source_id = e.source AND o.op_id = e.op "
    "LEFT JOIN raw_strings c ON c.string = e.comm LEFT JOIN raw_strings d ON d.string = e.detail "
    "WHERE e.start_ns >= :begin AND e.start_ns < :end AND e.source IN ({sources}) "
    "AND (:process IS NULL OR e.process = :process) ORDER BY e.start_ns"
)


def host_event(row: Sequence[int | str | None]) -> HostEvent:
    """The event of a row of `SQL`."""
    (
        start_ns,
        duration_ns,
        source,
        op,
        name,
        process,
        pid,
        tid,
        comm,
        cgroup_id,
        arg0,
        arg1,
        arg2,
        flags,
        queue,
        text,
    ) = row
    is_block = source == _BLOCK_IO  # thousands a second: built in one step
    event = HostEvent(
        start_ns=_number(start_ns),
        duration_ns=_number(duration_ns) or None,
        source=Source.IO if is_block else Source(_number(source)),
        op=_number(op),
        name=str(name),
        process=_number(process) or None,
        pid=_number(pid),
        tid=_number(tid),
        comm=str(comm),
        cgroup_id=_number(cgroup_id),
        size_bytes=_number(arg0) or None,
        is_kernel_thread=bool(_number(flags) & _BY_KTHREAD),
        is_page_fault=bool(_number(flags) & _PAGE_FAULT),
        sector=_number(arg1) if is_block else None,
        device=_number(arg2) or None if is_block else None,
        queue_ns=_number(queue) if is_block and queue is not None else None,
        stands_for=HOST_MANY if is_block and _number(flags) & _ONE_OF_MANY else 1,
    )
    if is_block:
        return event
    if event.source is Source.HOST:
        return _of_host(event, _number(arg1), None if arg2 is None else _number(arg2), _number(flags))
    ports = (_number(arg1) >> 16, _number(arg1) & 0xFFFF) if arg1 else None
    segments = _number(arg2) >> 16 or None if event.source is Source.TCP else None
    return replace(event, ports=ports, segments=segments, addresses=str(text))


def _of_host(event: HostEvent, arg1: int, arg2: int | None, flags: int) -> HostEvent:
    if event.op == HostOp.OOM_KILL:
        known = MEMORY_LIMITS[arg2] if arg2 and arg2 < len(MEMORY_LIMITS) else None
        return replace(event, other_pid=arg1 or None, limit=known)
    if event.op == HostOp.STOP_SIGNAL:
        return replace(event, other_pid=arg1 or None, code=arg2)
    if event.op == HostOp.PROCESS_EXIT:
        # 0x80: it has left a core
        return replace(event, code=None if arg2 is None else os.waitstatus_to_exitcode(arg2 & 0xFF7F))
    if event.op == HostOp.PROCESS_FORK:
        return replace(event, other_pid=arg1 or None)
    if event.op == HostOp.DIRECT_RECLAIM:
        return replace(event, limit="cgroup" if flags & HostFlag.MEMCG_LIMIT else "host")
    return event


def with_stops(events: Sequence[HostEvent]) -> list[HostEvent]:
    """The events, oldest first, with the durations of stops; None where the end of a stop is not among them."""
    ends: dict[int, int] = {}
    found: list[HostEvent] = []
    for event in reversed(events):
        if event.source is Source.HOST and event.op == HostOp.STOP_SIGNAL:
            if event.code in _CONTINUES:
                ends[event.pid] = event.start_ns
            elif event.code in _STOPS and event.pid in ends:
                found.append(replace(event, duration_ns=ends[event.pid] - event.start_ns))
                continue
        found.append(event)
    return found[::-1]


def _number(value: int | str | None) -> int:
    return int(value or 0)
