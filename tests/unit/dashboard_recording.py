"""A recording for the dashboard, and a server on it that really listens."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.demo.scene import ScriptedRun, Step
from ingero.serve.dashboard.exposure import Exposure
from ingero.serve.dashboard.server import certificate_of, create_server, server_context
from ingero.serve.http.addresses import Address, listen
from ingero.serve.recording_source import RecordingSource
from ingero.store.writing import tables

QUIET_S, END_S = 8, 16


def make_recording(path: Path) -> Path:
    """Two trainers; from QUIET_S on hogs keep one off its CPU, and a quota the other."""
    with ScriptedRun(path, seconds=END_S, not_traced={"NCCL": "no NCCL library was mapped"}) as run:
        crowded = run.process(100, "python", rank=0, cmdline="python train.py")
        throttled = run.process(101, "python", rank=1, cmdline="python train.py")
        for trainer in (crowded, throttled):
            run.train(trainer, 0, QUIET_S, Step())
        run.train(crowded, QUIET_S, END_S, Step(return_delay_ms=6, sync={"sleep": 5, "runq": 6}))
        run.train(throttled, QUIET_S, END_S, Step(idle_ms=7, idle={"throttled": 6.5}))
        for second in range(END_S):
            _second(run, second, crowded.number)
        for second in range(QUIET_S, END_S):
            run.culprit(crowded, 900, "hog", second, 380, switches=400)
        run.call(crowded, "cudaStreamSynchronize", 9, 11.5)
        run.append(
            tables.DROPS,
            start_ns=run.at(9),
            counter="sync_intervals_ring_full",
            reason="sync intervals dropped",
            count=12,
        )
    return path


LINE = ("/srv/train/model.py", 31, "forward")
LOADER = ("/srv/train/data.py", 12, "fetch")
MAIN = ("/srv/train/train.py", 90, "main")
LATE_MS = 3


def make_detailed(path: Path) -> Path:
    """Two ranks in two containers, rank 1 late in each collective, rank 0 with memory that grows and is refused."""
    with ScriptedRun(path, seconds=END_S) as run:
        ranks = [
            run.process(100 + rank, "python", rank=rank, cgroup_id=50 + rank, cmdline="python train.py")
            for rank in (0, 1)
        ]
        for rank, actor in enumerate(ranks):
            pod, long_id = f"train-{rank}", f"{rank}" * 64
            place = {"cgroup_id": 50 + rank, "kernel_cgroup_id": 50 + rank, "node": "demo"}
            run.append(tables.CGROUPS, **place, container_id=long_id, pod=pod)
            run.train(actor, 0, END_S, Step())
            run.communicator(actor, rank=rank, ranks=2)
            for step in range(10):
                run.collective(actor, "ncclAllReduce", 1 + step + rank * LATE_MS / 1000, step + 1, 1 << 20)
            run.op(actor, "ncclAllReduce", 1, 10, 0.02, bytes=10 << 20, recorded=10)
        first = ranks[0]
        forward, loading = run.stack([LINE, MAIN]), run.stack([LOADER, MAIN])
        for second in range(1, 9):
            run.memory(first, "cudaMalloc", second, 2, 64 << 20, stack=forward)
        run.memory(first, "cudaMalloc", 9, 0, 64 << 20, stack=loading, failures=3)
        run.call(first, "cudaStreamSynchronize", 3, 9.0, stack_hash=forward)
        run.call(first, "cudaMemcpyAsync", 4, 3.0, stack_hash=loading)
        run.call(first, "cudaLaunchKernel", 5, 1.0)
        run.sample(first, 6, [LOADER, MAIN], state="sleep", ms=40)
        run.culprit(first, 900, "hog", 3, 380, switches=400, cgroup_id=51)
        for second in range(END_S):
            run.gpu(second, used_bytes=(1 + second) << 28)
            _second(run, second, first.number)
    return path


def _second(run: ScriptedRun, second: int, process: int) -> None:
    is_crowded = second >= QUIET_S
    waiting_ns = 450_000_000 if is_crowded else 2_000_000
    run.append(
        tables.SNAPSHOTS,
        time_ns=run.at(second + 0.5),
        cpu_percent=98.0 if is_crowded else 24.0,
        mem_percent=41.0,
        load_avg=6.5,
        psi_cpu_some_ns=600_000_000 if is_crowded else 3_000_000,
        agent_cpu_ns=9_000_000,
        agent_rss_bytes=60 << 20,
    )
    clocks = dict.fromkeys(("throttled_ns", "yielded_ns", "io_ns", "uninterruptible_ns", "stopped_ns"), 0)
    clocks |= {"run_ns": 300_000_000, "runq_ns": waiting_ns, "sleep_ns": 700_000_000 - waiting_ns}
    run.append(
        tables.THREAD_STATE_SECONDS,
        start_ns=run.at(second),
        process=process,
        threads=4,
        switches=900,
        involuntary_switches=80,
        **clocks,
    )


@contextmanager
def serving(path: Path, *, token: str = "", client_ca: Path | None = None) -> Iterator[Exposure]:
    """A dashboard with TLS on a free port of this machine."""
    listening = listen(Address("127.0.0.1", 0))
    address = Address("127.0.0.1", listening.getsockname()[1])
    exposure = Exposure(address=address, token=token, client_ca=client_ca)
    source = RecordingSource(path, may_lag=True)
    server = create_server(source, exposure, server_context(exposure, certificate_of(exposure)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield exposure
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        source.close()
        with warnings.catch_warnings():  # the loop ends without waiting for the goodbye of browsers
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
