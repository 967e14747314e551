"""How long `ingero explain` takes over an hour of recording, and how much memory it needs.

Run: python -m bench.explain [--hours 1] [--events N] [--keep FILE]. The recording is made row by row as `trace` would
have stored it (selective): a trainer with 150 steps and 39,000 calls a second and its data-loading worker, 500
intervals off the CPU a second; ten minutes before the end CPU hogs come for two minutes. Prints rows, size, and for
each command the median wall and CPU time and the largest resident memory of three runs in processes of their own. On a
busy machine the wall time says nothing; the commands have one thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.events import THREAD_STATES, WAKER_KINDS
from ingero.ops import OPS
from ingero.store.reader import open_reader
from ingero.store.writing import tables
from ingero.units import format_bytes, format_count

_HOUR_S = 3600
_CHUNK_S = 20
_OFFCPU_PER_S = 500
_HOGGED_S = 120
_HEALTHY = Step(busy_ms=6.1, idle_ms=0.4, return_delay_ms=0.05, launches=250)
_HOGGED = Step(busy_ms=6.1, idle_ms=0.4, return_delay_ms=1.6, launches=250, sync={"runq": 1.6, "sleep": 5.0})
_CALLS = {"cudaLaunchKernel": (250.0, 0.004), "cudaMemcpyAsync": (8.0, 0.01), "cudaStreamSynchronize": (1.0, 5.0)}
_RUNS = 3


def build(path: Path, seconds: int, events: int) -> None:
    """Writes the recording."""
    hogged_from = max(_CHUNK_S, seconds - 5 * _HOGGED_S)
    with ScriptedRun(path, seconds=seconds) as script:
        trainer = script.process(100, "python")
        worker = script.process(101, "pt_data_worker", parent=trainer)
        for begin in range(0, seconds, _CHUNK_S):
            is_hogged = hogged_from <= begin < hogged_from + _HOGGED_S
            script.train(trainer, begin, begin + _CHUNK_S, _HOGGED if is_hogged else _HEALTHY, calls=_CALLS)
            _off_cpu(script, trainer, worker, begin)
            _seconds(script, trainer, begin, is_hogged=is_hogged)
            _events(script, trainer, begin, events * _CHUNK_S // seconds)


def _off_cpu(script: ScriptedRun, trainer: Actor, worker: Actor, begin: int) -> None:
    count = _OFFCPU_PER_S * _CHUNK_S
    starts = script.at(begin) + np.arange(count) * (10**9 // _OFFCPU_PER_S)
    pids = np.where(np.arange(count) % 2, worker.pid, trainer.pid)
    script.append(
        tables.OFFCPU,
        count,
        start_ns=starts,
        duration_ns=1_500_000,
        process=np.where(pids == worker.pid, worker.number, trainer.number),
        pid=pids,
        tid=pids,
        comm=script.text("python"),
        state=THREAD_STATES.index("sleep"),
        woken_ns=starts + 1_400_000,
        waker_kind=WAKER_KINDS.index("interrupt"),
    )


def _seconds(script: ScriptedRun, trainer: Actor, begin: int, *, is_hogged: bool) -> None:
    starts = script.at(begin) + np.arange(_CHUNK_S) * 10**9
    clocks = {"run_ns": 300_000_000, "runq_ns": 1_000_000, "sleep_ns": 5 * 10**8}
    zero = {f"{name}_ns": 0 for name in ("throttled", "yielded", "io", "uninterruptible", "stopped")}
    script.append(
        tables.THREAD_STATE_SECONDS, _CHUNK_S, start_ns=starts, process=trainer.number, switches=400, **clocks, **zero
    )
    script.append(tables.SNAPSHOTS, _CHUNK_S, time_ns=starts, cpu_percent=40.0, mem_percent=30.0, load_avg=3.0)
    for pid in range(900, 904):
        script.append(
            tables.CULPRITS,
            _CHUNK_S,
            start_ns=starts,
            process=trainer.number,
            kind=2,
            culprit_pid=pid,
            culprit_name=script.text("hog"),
            ns=60_000_000 if is_hogged else 100_000,
            switches=100,
        )


def _events(script: ScriptedRun, trainer: Actor, begin: int, count: int) -> None:
    op = next(op for op in OPS if op.name == "cudaLaunchKernel")
    script.append(
        tables.EVENTS,
        count,
        start_ns=script.at(begin) + np.arange(count) * (_CHUNK_S * 10**9 // max(count, 1)),
        duration_ns=np.arange(count) * 977 % 100_003,
        process=trainer.number,
        pid=trainer.pid,
        tid=trainer.pid,
        source=int(op.source),
        op=op.code,
        caller=1 << 46,
        comm=script.text("python"),
        **{f"{name}_ns": 1_000 for name in ("run", "runq", "sleep")},
    )


def _measure(arguments: list[str]) -> tuple[float, float, int]:
    """Wall and CPU time in s and largest resident memory in bytes of one run."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "ingero.cli.main", *arguments], stdout=subprocess.DEVNULL, env=environment
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode in (0, 1), arguments
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    """Builds the recording and times the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--events", type=int, default=2_600_000, help="recorded calls")
    parser.add_argument("--keep", type=Path, help="use this file; make it if it does not exist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingero-bench-") as folder:
        path = options.keep or Path(folder) / "hour.db"
        if not path.exists():
            build(path, int(options.hours * _HOUR_S), options.events)
        with open_reader(path) as reader:
            names = ("raw_sync_intervals", "raw_offcpu", "raw_events")
            rows = {n: next(reader.connection.execute(f"SELECT count(*) FROM {n}"))[0] for n in names}
        print(f"{', '.join(f'{n} {format_count(c)}' for n, c in rows.items())}, {format_bytes(path.stat().st_size)}")
        for extra in ([], ["--json"], ["--last", "5m"], ["--last", "5m", "--per-process"]):
            runs = [_measure(["explain", "--db", str(path), *extra]) for _ in range(_RUNS)]
            wall, cpu = (statistics.median(run[index] for run in runs) for index in (0, 1))
            memory = format_bytes(max(run[2] for run in runs))
            print(f"explain {' '.join(extra):14} wall {wall:6.2f} s  CPU {cpu:6.2f} s  {memory}")


if __name__ == "__main__":
    main()
