"""A recording with everything that an export shows, on two nodes whose processes share a pid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import apsw

from ingero.ops import HostOp, IoOp, Source
from ingero.store.records import SessionFacts
from ingero.store.vocabulary import STATE_COLUMNS
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

MS = 1_000_000
SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 * SECOND_NS
PROBE_COST_NS = 700
HASH = 0x1234_5678
LAUNCH, SYNC, COPY = 3, 5, 7  # CUDA
ALL_REDUCE = 3  # NCCL

TRAINER, RANK1, OTHER_NODE = (10, 0), (20, 1), (10, 2)  # pid, rank
FRAMES = [
    {"ip": "0x10", "symbol": "at::native::gemm", "file": "libtorch_cuda.so"},
    {"py_file": "/usr/lib/python3.11/site-packages/torch/nn.py", "py_func": "Linear.forward", "py_line": 34},
    {"py_file": "/srv/train.py", "py_func": "step; or so", "py_line": 42},
]


def add(writer: Writer, table: tables.Table, **columns: Any) -> None:
    """Adds one row."""
    writer.append(
        table,
        table.rows(1, session=writer.session, **columns) if "session" in table.columns else table.rows(1, **columns),
    )


def process(writer: Writer, pid: int, rank: int) -> int:
    number = writer.process_id(pid, 1)
    add(
        writer,
        tables.PROCESSES,
        process=number,
        pid=pid,
        start_ns=1,
        name="python3",
        rank=rank,
        world_size=3,
        cmdline="python3 train.py",
    )
    add(writer, tables.THREADS, process=number, tid=pid, name="main")
    add(writer, tables.THREADS, process=number, tid=pid + 1, name="loader")
    return number


def call(writer: Writer, number: int, pid: int, at_ms: float, ms: float, op: int, **columns: Any) -> None:
    """Writes a recorded call, by default on a CPU from entry to return."""
    duration_ns = int(ms * MS)
    clocks = dict.fromkeys(STATE_COLUMNS, 0) | {"run_ns": duration_ns}
    row = {"source": Source.CUDA, "tid": pid, "comm": writer.intern("python3"), "residual_ns": 0} | clocks
    add(
        writer,
        tables.EVENTS,
        process=number,
        pid=pid,
        start_ns=BEGIN_NS + int(at_ms * MS),
        duration_ns=duration_ns,
        op=op,
        **(row | columns),
    )


def first_node(writer: Writer) -> None:
    """Rank 0 with everything, rank 1 with one call."""
    trainer = process(writer, *TRAINER)
    pid = TRAINER[0]
    name = writer.intern
    add(writer, tables.STACKS, hash=77, frames=json.dumps(FRAMES))
    add(writer, tables.KERNELS, process=trainer, function=0xF00, name="gemm<float>", short_name="gemm")
    # one call inside another that begins with it, and two of other threads that overlap
    call(writer, trainer, pid, 10, 8, COPY, arg0=4096, stack_hash=77)
    call(writer, trainer, pid, 10, 2, 1, source=Source.DRIVER)
    call(writer, trainer, pid, 13, 1, 1, source=Source.DRIVER, ret_code=2)
    call(writer, trainer, pid, 30, 5, LAUNCH, tid=pid + 1, function=0xF00, stream=0x5000)
    call(writer, trainer, pid, 32, 5, LAUNCH, tid=pid + 1)  # as a missed return leaves it: overlaps, inside of nothing
    # a launch and the sync that waits for it; the sync interval knows their times with the cost of the probe
    launch_ms, sync_ms, cost_ms = 50, 60, PROBE_COST_NS / MS
    call(writer, trainer, pid, launch_ms + cost_ms, 1, LAUNCH, function=0xF00)
    waited = {"run_ns": 0, "runq_ns": 9 * MS, "sleep_ns": 11 * MS, "culprit_pid": 99, "culprit_ns": 8 * MS}
    call(writer, trainer, pid, sync_ms + cost_ms, 20, SYNC, stack_hash=77, culprit_name=name("hog"), **waited)
    end_ns = BEGIN_NS + sync_ms * MS + PROBE_COST_NS + 20 * MS
    sync_interval(
        writer,
        trainer,
        pid,
        prev_sync_end_ns=BEGIN_NS + 40 * MS,
        first_launch_ns=BEGIN_NS + launch_ms * MS,
        sync_start_ns=BEGIN_NS + sync_ms * MS,
        gpu_done_ns=end_ns - 9 * MS,
        sync_end_ns=end_ns,
    )
    # the next sync interval's launch has no row
    call(writer, trainer, pid, 95 + cost_ms, 4, SYNC)
    after_ns = BEGIN_NS + 99 * MS + PROBE_COST_NS
    sync_interval(
        writer,
        trainer,
        pid,
        prev_sync_end_ns=end_ns,
        first_launch_ns=BEGIN_NS + 90 * MS,
        sync_start_ns=BEGIN_NS + 95 * MS,
        gpu_done_ns=after_ns,
        sync_end_ns=after_ns,
    )
    off_cpu(writer, trainer, pid)
    host_events(writer, trainer, pid)
    collectives(writer, trainer, pid)
    seconds(writer, trainer, pid)
    findings(writer)
    call(writer, process(writer, *RANK1), RANK1[0], 15, 3, SYNC)


def sync_interval(writer: Writer, number: int, pid: int, **times: int) -> None:
    """A sync interval of the default stream of device 0."""
    a, f, r, b = (times[name] for name in ("prev_sync_end_ns", "first_launch_ns", "gpu_done_ns", "sync_end_ns"))
    add(
        writer,
        tables.SYNC_INTERVALS,
        process=number,
        pid=pid,
        device=0,
        stream=0x80_0000_0000_0001,
        **times,
        gpu_done_low_ns=r,
        gpu_done_high_ns=r,
        idle_ns=f - a,
        busy_ns=r - f,
        return_delay_ns=b - r,
        launches=1,
        source=Source.CUDA,
        op=SYNC,
        first_launch_tid=pid,
        sync_tid=pid,
        op_set=writer.intern("cudaLaunchKernel"),
        sync_runq_ns=9 * MS,
    )


def off_cpu(writer: Writer, number: int, pid: int) -> None:
    """Writes off-CPU intervals: a sleep that the loader ended, a run-queue wait, and a sleep with an untraced waker."""
    name = writer.intern
    common = {"process": number, "pid": pid, "comm": name("python3")}
    at = [BEGIN_NS + start * MS for start in (60, 85, 100)]
    add(
        writer,
        tables.OFFCPU,
        **common,
        tid=pid,
        start_ns=at[0],
        duration_ns=20 * MS,
        state=5,
        woken_ns=at[0] + 11 * MS,
        waker_kind=1,
        waker_tid=pid + 1,
        waker_name=name("loader"),
        cpu=3,
    )
    add(
        writer,
        tables.OFFCPU,
        **common,
        tid=pid,
        start_ns=at[1],
        duration_ns=3 * MS,
        state=2,
        culprit_pid=99,
        culprit_name=name("hog"),
        culprit_ns=2 * MS,
    )
    add(
        writer,
        tables.OFFCPU,
        **common,
        tid=pid + 1,
        start_ns=at[2],
        duration_ns=2 * MS,
        state=5,
        woken_ns=at[2] - 1000,
        waker_kind=1,
        waker_tid=555,
        waker_name=name("sshd"),
    )


def host_events(writer: Writer, number: int, pid: int) -> None:
    """Writes block I/O that overlaps on one device, and an event without a duration."""
    host = {"process": number, "pid": pid, "tid": pid, "comm": writer.intern("python3")}
    for at_ms, ms, device in (
        (20, 10, 259 << 20 | 3),
        (22, 2, 259 << 20 | 3),
        (24, 10, 259 << 20 | 3),
        (20, 1, 8 << 20),
    ):
        add(
            writer,
            tables.EVENTS,
            **host,
            source=Source.IO,
            op=IoOp.READ,
            start_ns=BEGIN_NS + at_ms * MS,
            duration_ns=ms * MS,
            arg0=512,
            arg1=8,
            arg2=device,
        )
    add(writer, tables.EVENTS, **host, source=Source.HOST, op=HostOp.PROCESS_FORK, start_ns=BEGIN_NS + 5 * MS, arg1=30)


def collectives(writer: Writer, number: int, pid: int) -> None:
    """An all-reduce of floats, summed."""
    add(
        writer,
        tables.COMMUNICATORS,
        process=number,
        number=1,
        handle=0xC0,
        comm_id_hash=HASH,
        rank=0,
        nranks=3,
        created_ns=BEGIN_NS,
    )
    call(
        writer,
        number,
        pid,
        110,
        1,
        ALL_REDUCE,
        source=Source.NCCL,
        arg0=1 << 20,
        arg1=0xC0,
        arg2=7 | 1 << 8,
        function=1 << 40 | 5,
    )


def seconds(writer: Writer, number: int, pid: int) -> None:
    """Two samples of the machine, a second of the threads, and a call that is open."""
    for second, cpu in ((0, 25.0), (1, 75.0)):
        add(
            writer,
            tables.SNAPSHOTS,
            time_ns=BEGIN_NS + second * SECOND_NS,
            cpu_percent=cpu,
            mem_available_bytes=8 << 30,
            psi_io_some_ns=second * SECOND_NS // 4,
        )
    add(
        writer,
        tables.THREAD_STATE_SECONDS,
        start_ns=BEGIN_NS,
        process=number,
        **(dict.fromkeys(STATE_COLUMNS, 0) | {"run_ns": SECOND_NS // 2, "runq_ns": SECOND_NS // 4}),
    )
    for second in (1, 2):
        add(
            writer,
            tables.IN_FLIGHT,
            time_ns=BEGIN_NS + second * SECOND_NS,
            process=number,
            pid=pid,
            tid=pid + 1,
            source=Source.CUDA,
            op=SYNC,
            since_ns=BEGIN_NS + SECOND_NS // 5,
            stack_hash=77,
        )


def findings(writer: Writer) -> None:
    """An incident that has ended, one that is open, and a loss."""
    for cause, severity, start_ms, end_ns in (
        ("cpu-contention", "HIGH", 60, BEGIN_NS + 80 * MS),
        ("nccl-hang", "CRITICAL", 70, None),
    ):
        add(
            writer,
            tables.INCIDENTS,
            incident=start_ms,
            cause=cause,
            severity=severity,
            start_ns=BEGIN_NS + start_ms * MS,
            end_ns=end_ns,
            lost_ns=9 * MS,
            lost_ratio=0.25,
            explained_ratio=0.9,
            summary="hog took the CPU",
            affected=json.dumps([{"pid": 10}]),
            culprits=json.dumps([{"pid": 99, "name": "hog"}]),
            evidence=json.dumps({"runq_ns": 9 * MS}),
            fixes=json.dumps(["taskset -pc 2 99"]),
        )
    add(writer, tables.DROPS, start_ns=BEGIN_NS + 5 * MS, counter="offcpu_buffer_full", count=3)


def second_node(writer: Writer) -> None:
    """A process with the pid of rank 0."""
    call(writer, process(writer, *OTHER_NODE), OTHER_NODE[0], 12, 6, SYNC)


def make_recording(path: Path) -> Path:
    """Writes it."""
    for node, fill in (("node-a", first_node), ("node-b", second_node)):
        facts = SessionFacts(uuid=node, started_ns=BEGIN_NS, not_traced={"TCP": "switched off (tcp)"})
        with Writer(path, session=facts, node=node, clock=lambda: BEGIN_NS + 3 * SECOND_NS) as writer:
            fill(writer)
    return path


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query on the database."""
    with apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY) as db:
        return list(db.execute(sql))
