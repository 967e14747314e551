"""A recording with rows for every query of the reader: ten seconds of a trainer with a noisy neighbor."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ingero.store import histograms
from ingero.store.records import SessionFacts
from ingero.store.vocabulary import IDLE_PID, STATE_COLUMNS, UNKNOWN_PID, CulpritKind
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 // 60 * 60 * SECOND_NS
END_NS = BEGIN_NS + 600 * SECOND_NS

# Issue text of the query command: it has to run word for word.
PER_CONTAINER = """
SELECT container_id, kernel_name, COUNT(*) AS launches, SUM(duration_ns)/1e6 AS total_ms FROM cuda_events e
JOIN containers c ON c.cgroup_id = e.cgroup_id GROUP BY container_id, kernel_name ORDER BY total_ms DESC LIMIT 20;
"""
PER_CONTAINER_NCCL = """
SELECT container_id, op, COUNT(*) AS calls, AVG(duration_ns)/1e6 AS avg_ms, MAX(duration_ns)/1e6 AS max_ms
FROM nccl_events e JOIN containers c ON c.cgroup_id = e.cgroup_id GROUP BY container_id, op
ORDER BY max_ms DESC LIMIT 20;
"""


def fill(writer: Writer) -> None:
    """Ten seconds of one trainer (process 1, pid 10) with a noisy neighbor, and a second process."""
    session = writer.session
    trainer, other = writer.process_id(10, 1), writer.process_id(20, 1)
    name = writer.intern
    add = writer.append
    for process, pid, title in ((trainer, 10, "python3"), (other, 20, "python3")):
        row = tables.PROCESSES.rows(
            1, process=process, session=session, pid=pid, start_ns=1, name=title, rank=pid // 10 - 1, world_size=2
        )
        add(tables.PROCESSES, row)
    seconds = BEGIN_NS + np.arange(10) * SECOND_NS
    clocks: dict[str, tables.Column] = dict.fromkeys(STATE_COLUMNS, 0)
    add(
        tables.OP_STATS,
        tables.OP_STATS.rows(
            10,
            session=session,
            start_ns=seconds,
            process=trainer,
            source=1,
            op=5,
            library=name("libtorch_cuda.so"),
            count=100,
            recorded=2,
            sum_ns=400_000_000,
            max_ns=np.arange(10) + 9_000_000,
            **(clocks | {"run_ns": 300_000_000, "runq_ns": 100_000_000}),
        ),
    )
    for minute in range(2):
        durations = np.full(500, 4_000_000 if minute == 0 else 8_000_000)
        add(
            tables.CALL_SITES,
            tables.CALL_SITES.rows(
                1,
                session=session,
                start_ns=BEGIN_NS + minute * 60 * SECOND_NS,
                process=trainer,
                source=1,
                op=5,
                count=500,
                sum_ns=int(durations.sum()),
                histogram=histograms.pack(histograms.count(durations)),
            ),
        )
    add(
        tables.THREAD_STATE_SECONDS,
        tables.THREAD_STATE_SECONDS.rows(
            10,
            session=session,
            start_ns=seconds,
            process=trainer,
            threads=np.arange(10) % 3 + 4,
            switches=5,
            involuntary_switches=2,
            **(clocks | {"run_ns": 700_000_000, "runq_ns": 300_000_000}),
        ),
    )
    culprits = ((77, "fluent-bit", 250), (IDLE_PID, "", 20), (UNKNOWN_PID, "", 30))
    for pid, title, ms in culprits:
        add(
            tables.CULPRITS,
            tables.CULPRITS.rows(
                10,
                session=session,
                start_ns=seconds,
                process=trainer,
                kind=int(CulpritKind.RUNQ),
                culprit_pid=pid,
                culprit_name=name(title),
                ns=ms * 1_000_000,
                switches=3,
            ),
        )
    calls: dict[str, tables.Column] = {"session": session, "process": trainer, "pid": 10, "tid": 11, "cgroup_id": 500}
    add(
        tables.EVENTS,
        tables.EVENTS.rows(
            20,
            **calls,
            start_ns=np.repeat(seconds, 2) + 5,
            duration_ns=np.arange(20) * 1_000_000,
            source=1,
            op=5,
            caller_library=name("libtorch_cuda.so"),
            residual_ns=0,
            switches=1,
            involuntary_switches=1,
            culprit_pid=77,
            culprit_name=name("fluent-bit"),
            culprit_ns=500_000,
            waker_kind=1,
            waker_tid=12,
            waker_name=name("pt_data_pin"),
            **(clocks | {"run_ns": np.arange(20) * 1_000_000}),
        ),
    )
    add(
        tables.EVENTS,
        tables.EVENTS.rows(
            30,
            **calls,
            start_ns=BEGIN_NS + np.arange(30),
            duration_ns=2_000,
            source=4,
            op=1,
            function=np.arange(30) % 2 + 0x1000,
        ),
    )
    add(tables.KERNELS, tables.KERNELS.rows(1, process=trainer, function=0x1000, name="gemm(int)", short_name="gemm"))
    add(
        tables.EVENTS,
        tables.EVENTS.rows(
            4,
            **calls,
            start_ns=BEGIN_NS,
            duration_ns=[1, 2, 3, 6],
            source=9,
            op=3,
            arg0=4096,
            arg1=0xC0,
            arg2=7 | 1 << 8,
        ),
    )
    add(
        tables.COMMUNICATORS,
        tables.COMMUNICATORS.rows(
            1, process=trainer, number=1, handle=0xC0, comm_id_hash=99, rank=1, nranks=2, created_ns=BEGIN_NS - 5
        ),
    )
    add(
        tables.CGROUPS,
        tables.CGROUPS.rows(
            2, cgroup_id=[500, 501], kernel_cgroup_id=[500, 501], node="n1", container_id=["abc", ""], pod=["train", ""]
        ),
    )
    sync_intervals = {f"{part}_{clock}": 1 for part in ("idle", "launch", "sync") for clock in STATE_COLUMNS}
    prev_sync_end_ns = seconds
    add(
        tables.SYNC_INTERVALS,
        tables.SYNC_INTERVALS.rows(
            10,
            **(sync_intervals | {"idle_run_ns": None}),
            session=session,
            process=trainer,
            pid=10,
            device=0,
            stream=7,
            prev_sync_end_ns=prev_sync_end_ns,
            first_launch_ns=prev_sync_end_ns + 10,
            sync_start_ns=prev_sync_end_ns + 30,
            gpu_done_ns=prev_sync_end_ns + 60,
            gpu_done_low_ns=prev_sync_end_ns + 60,
            gpu_done_high_ns=prev_sync_end_ns + 60,
            sync_end_ns=prev_sync_end_ns + 100,
            idle_ns=10,
            busy_ns=50,
            return_delay_ns=40,
            launches=3,
            op_set=name("cudaLaunchKernel,cudaMemcpyAsync"),
            step_type=name("launches 2^7"),
            checkpoints=np.array([5, 6], dtype="<i8").tobytes(),
        ),
    )
    add(
        tables.OFFCPU,
        tables.OFFCPU.rows(
            3, session=session, start_ns=BEGIN_NS, duration_ns=[300, 100, 200], process=trainer, pid=10, tid=11, state=5
        ),
    )
    add(
        tables.IN_FLIGHT,
        tables.IN_FLIGHT.rows(
            2,
            session=session,
            time_ns=[BEGIN_NS + 1, BEGIN_NS + SECOND_NS],
            process=trainer,
            pid=10,
            tid=11,
            source=9,
            op=3,
            since_ns=BEGIN_NS,
        ),
    )
    add(
        tables.KERNEL_LAUNCHES,
        tables.KERNEL_LAUNCHES.rows(
            10, session=session, start_ns=seconds, process=trainer, function=4096, library=name("a.so"), count=15
        ),
    )
    add(
        tables.PROBES,
        tables.PROBES.rows(
            2,
            session=session,
            library="/opt/libcudart.so.12",
            symbol=["cudaMalloc", "cudaFree"],
            is_attached=[1, 0],
            reason=["", "symbol not found"],
        ),
    )
    add(tables.SNAPSHOTS, tables.SNAPSHOTS.rows(10, session=session, time_ns=seconds, cpu_percent=94.5))
    add(
        tables.DROPS,
        [
            (session, BEGIN_NS, 1, "calls_ring_full", "", 5),
            (session, BEGIN_NS + SECOND_NS, 1, "calls_ring_full", "", 2),
        ],
    )


def make_recording(path: Path) -> Path:
    """Writes the recording; returns its path."""
    facts = SessionFacts(uuid="u", started_ns=BEGIN_NS, kernel="6.18", options={"max_overhead": 2.0})
    with Writer(path, session=facts, node="n1", clock=lambda: END_NS) as writer:
        fill(writer)
    return path
