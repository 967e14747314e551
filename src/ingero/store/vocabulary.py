"""The lookup tables that every database carries: sources, operations, states and flags with their names."""

from __future__ import annotations

import enum
from collections.abc import Iterator

import apsw

from ingero.events import (
    STATE_COLUMNS,
    STATES,
    THREAD_STATES,
    THROTTLE_REASONS,
    WAKER_KINDS,
    CallFlag,
    HostFlag,
    SyncIntervalFlag,
)
from ingero.ops import (
    NCCL_DATATYPES,
    NCCL_REDUCE_OPS,
    OPS,
    Arg,
    Flag,
    HostOp,
    IoOp,
    Kind,
    MemoryKind,
    NetOp,
    Op,
    Source,
    TcpOp,
)

__all__ = [
    "STATES",
    "STATE_COLUMNS",
    "THREAD_STATES",
    "WAKER_KINDS",
    "CallFlag",
    "CulpritKind",
    "HostFlag",
    "SyncIntervalFlag",
    "fill",
    "op_rows",
]


class CulpritKind(enum.IntEnum):
    """Column `kind` of raw_culprits: the clock the affected process lost its time to (ids of thread_states)."""

    RUNQ = THREAD_STATES.index("runq")
    YIELDED = THREAD_STATES.index("yielded")


IDLE_PID = 0  # column culprit_pid: the CPU was idle
UNKNOWN_PID = -1  # column culprit_pid: nobody could be named

_SOURCES = {
    Source.CUDA: "CUDA runtime API (libcudart)",
    Source.HOST: "Linux kernel: scheduler, memory, process lifecycle",
    Source.DRIVER: "CUDA driver API (libcuda)",
    Source.IO: "block I/O",
    Source.TCP: "TCP",
    Source.NET: "socket send and receive",
    Source.CUDA_GRAPH: "CUDA graphs",
    Source.NCCL: "NCCL",
}

# name, description, arg0, arg1, arg2
_HostRow = tuple[str, str, str, str, str]
_PORTS = "ports: source << 16 | to"
_HOST: dict[tuple[Source, int], _HostRow] = {
    (Source.HOST, HostOp.SCHED_SWITCH): ("sched_switch", "context switch", "", "pid", ""),
    (Source.HOST, HostOp.SCHED_WAKEUP): ("sched_wakeup", "wake-up", "", "", ""),
    (Source.HOST, HostOp.PAGE_ALLOC): ("mm_page_alloc", "page allocation", "bytes", "", ""),
    (Source.HOST, HostOp.OOM_KILL): (
        "oom_kill",
        "killed for lack of memory",
        "bytes",
        "pid of the affected process",
        "1: of the host, 2: of a cgroup",
    ),
    (Source.HOST, HostOp.PROCESS_EXEC): ("process_exec", "program start", "", "", ""),
    (Source.HOST, HostOp.PROCESS_EXIT): ("process_exit", "end of a whole process", "", "", "as wait(2) has it"),
    (Source.HOST, HostOp.PROCESS_FORK): ("process_fork", "new process", "", "pid of the child", ""),
    (Source.HOST, HostOp.POD_RESTART): ("pod_restart", "container of a pod restarted", "", "", ""),
    (Source.HOST, HostOp.POD_EVICTION): ("pod_eviction", "pod evicted", "", "", ""),
    (Source.HOST, HostOp.POD_OOM_KILL): ("pod_oom_kill", "pod killed for lack of memory", "", "", ""),
    (Source.HOST, HostOp.PAGE_ALLOC_SUMMARY): ("mm_page_alloc_summary", "page allocation, summed", "bytes", "", ""),
    (Source.HOST, HostOp.SCHED_SWITCH_SUMMARY): ("sched_switch_summary", "context switches, counted", "", "", ""),
    (Source.HOST, HostOp.DIRECT_RECLAIM): ("direct_reclaim", "the task freed memory itself", "bytes", "order", ""),
    (Source.HOST, HostOp.COMPACTION): ("compaction", "the task moved pages itself", "", "order", ""),
    (Source.HOST, HostOp.MAJOR_FAULT): ("major_fault", "page read from disk", "", "address", ""),
    (Source.HOST, HostOp.STOP_SIGNAL): ("stop_signal", "signal that stops", "", "pid of the sender", "signal number"),
    (Source.HOST, HostOp.LATE_TIMER): ("late_timer", "timer of the kernel that came late", "", "CPU", ""),
    (Source.IO, IoOp.READ): ("block_read", "block I/O read", "bytes", "sector", "device (dev_t)"),
    (Source.IO, IoOp.WRITE): ("block_write", "block I/O write", "bytes", "sector", "device (dev_t)"),
    (Source.IO, IoOp.DISCARD): ("block_discard", "block I/O discard", "bytes", "sector", "device (dev_t)"),
    (Source.IO, IoOp.FLUSH): ("block_flush", "block device flush", "bytes", "sector", "device (dev_t)"),
    (Source.TCP, TcpOp.RETRANSMIT): (
        "tcp_retransmit",
        "TCP retransmission",
        "bytes",
        _PORTS,
        "state | segments << 16",
    ),
    (Source.NET, NetOp.SEND): ("net_send", "socket send", "bytes", _PORTS, "address family | calls << 16"),
    (Source.NET, NetOp.RECEIVE): ("net_recv", "socket receive", "bytes", _PORTS, "address family | calls << 16"),
}

HOST_OP_NAMES: dict[tuple[Source, int], str] = {key: row[0] for key, row in _HOST.items()}

OpRow = tuple[int, int, str, str, str, str, str, str, str]


def op_rows() -> Iterator[OpRow]:
    """Rows of table `ops`: the traced calls of `ingero.ops` and the host operations."""
    for op in OPS:
        size = "bytes" if op.bytes else ""
        text = f"{op.library.value} call"
        yield (
            op.source,
            op.code,
            op.name,
            text,
            size,
            _name(op.handle) or ("host memory" if op.to or op.origin else ""),
            _extra(op),
            ",".join(op.aliases),
            kind_text(op.kind),
        )
    for (source, code), row in _HOST.items():
        yield (source, code, *row, "", "")


def kind_text(kind: Kind) -> str:
    """The kind of a call, in the words of column `kind`."""
    words = ((Kind.LAUNCH, "launch"), (Kind.COPY, "copy"), (Kind.COLLECTIVE, "collective"), (Kind.SYNC, "wait"))
    return ",".join(word for bits, word in words if kind & bits)


def _extra(op: Op) -> str:
    group = "group << 40" if op.kind & Kind.NCCL else ""
    typed = "ncclDataType_t | ncclRedOp_t + 1 << 8 | root or peer + 1 << 16" if op.flags & Flag.TYPED else ""
    return " | ".join(part for part in (typed, group) if part) or _name(op.extra)


def _name(arg: Arg | None) -> str:
    return arg.name if arg else ""


_TABLES = (
    *(
        "sources",
        "ops",
        "thread_states",
        "waker_kinds",
        "call_flags",
        "sync_interval_flags",
        "host_flags",
        "throttle_reasons",
    ),
    *("memory_kinds", "nccl_datatypes", "nccl_reduce_ops"),
)


def fill(db: apsw.Connection) -> None:
    """Write every lookup table anew, e.g. after an upgrade that traces more calls."""
    for table in _TABLES:
        db.execute(f"DELETE FROM {table}")
    db.executemany("INSERT INTO sources VALUES (?, ?, ?)", ((s, s.name, text) for s, text in _SOURCES.items()))
    db.executemany("INSERT INTO ops VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", op_rows())
    db.executemany("INSERT INTO thread_states VALUES (?, ?)", enumerate(THREAD_STATES))
    db.executemany("INSERT INTO waker_kinds VALUES (?, ?)", enumerate(WAKER_KINDS))
    db.executemany("INSERT INTO memory_kinds VALUES (?, ?)", ((int(kind), kind.name.lower()) for kind in MemoryKind))
    db.executemany("INSERT INTO call_flags VALUES (?, ?)", ((int(f), f.name.lower()) for f in CallFlag if f.name))
    db.executemany(
        "INSERT INTO sync_interval_flags VALUES (?, ?)", ((int(f), f.name.lower()) for f in SyncIntervalFlag if f.name)
    )
    db.executemany("INSERT INTO host_flags VALUES (?, ?)", ((int(f), f.name.lower()) for f in HostFlag if f.name))
    db.executemany("INSERT INTO throttle_reasons VALUES (?, ?)", THROTTLE_REASONS.items())
    types = ((value, name, size) for value, (name, size) in enumerate(NCCL_DATATYPES))
    db.executemany("INSERT INTO nccl_datatypes VALUES (?, ?, ?)", types)
    db.executemany("INSERT INTO nccl_reduce_ops VALUES (?, ?)", enumerate(NCCL_REDUCE_OPS))
