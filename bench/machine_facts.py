"""What the facts cost that are read once a second besides the kernel's sums: GPUs, scheduling, CPUs.

CPU time of the thread that reads, median of several turns. GPUs are the simulated ones: their library answers from
memory, so what a driver adds (its own calls into the kernel) is not in the figure.

Needs gcc: `python -m bench.machine_facts [--short] [--json]`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ingero.attach.objects import object_path
from ingero.capture.host.gpu_samples import GpuSamples
from ingero.capture.host.scheduling import SchedulingRows
from ingero.capture.loop.null_sink import NullSink
from ingero.capture.processes.callers import CallerLocations
from ingero.capture.processes.traced_processes import TracedProcess
from ingero.capture.sums.cpu_seconds import CpuSeconds
from ingero.decode.btf import btf_of
from ingero.demo.gpusim import build as gpusim
from ingero.discover.gpus import open_nvml
from ingero.discover.processes import ProcessId

_GPUS = (1, 8)
_PROCESSES = (1, 8, 32)
_CPUS = (2, 128)
_CALLING_THREADS = 8  # of each process
_TURNS = 7


def main() -> None:
    """Measures each; GPUs in a child, because NVML is found when a process first opens it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer readings")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gpus", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    readings = 10 if options.short else 100
    if options.gpus:
        print(_gpus_us(readings))
        return
    figures = {f"{count} GPUs": _gpus_in_a_child(count, short=options.short) for count in _GPUS}
    figures |= {f"{count} processes": _scheduling_us(count, readings) for count in _PROCESSES}
    figures |= {f"{count} CPUs": _cpus_us(count, readings) for count in _CPUS}
    if options.json:
        print(json.dumps(figures))
        return
    for name, us in figures.items():
        print(f"{name:>14}  {us:7.0f} us of CPU a second")


def _median_us(read: Callable[[], None], readings: int) -> float:
    read()  # the first finds everything new
    turns: list[float] = []
    for _ in range(_TURNS):
        begin = time.thread_time_ns()
        for _ in range(readings):
            read()
        turns.append((time.thread_time_ns() - begin) / readings / 1000)
    return statistics.median(turns)


def _gpus_in_a_child(count: int, *, short: bool) -> float:
    with tempfile.TemporaryDirectory() as folder:
        variables = gpusim.environment(gpusim.build(), ctl=Path(folder) / "knobs", devices=count)
        command = [sys.executable, "-m", "bench.machine_facts", "--gpus", str(count), *(["--short"] if short else [])]
        done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _gpus_us(readings: int) -> float:
    with open_nvml() as nvml:
        samples = GpuSamples(NullSink("bench"), lambda mono_ns: mono_ns)

        def read() -> None:
            samples.take(nvml)
            samples.write()

        return _median_us(read, readings)


def _scheduling_us(processes: int, readings: int) -> float:
    """The time (us) to read the scheduling of traced processes, all of which are this one and do not change."""
    pids = sorted((int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()), reverse=True)[
        :processes
    ]
    traced_processes = [
        TracedProcess(slot=at, id=ProcessId(pid, 1), number=at + 1, start_ns=1, name="", callers=CallerLocations(pid))
        for at, pid in enumerate(pids)
    ]
    threads = np.zeros(processes * _CALLING_THREADS, btf_of(object_path("layouts")).dtype("thread_dump"))
    threads["pid"][: len(pids) * _CALLING_THREADS] = np.repeat(pids, _CALLING_THREADS)
    threads["tid"] = os.getpid() + np.arange(len(threads)) % 2
    scheduling = SchedulingRows(NullSink("bench"))
    time_ns = 0

    def read() -> None:
        nonlocal time_ns
        time_ns += 1_000_000_000
        threads["hits"] += 1
        scheduling.write(time_ns, traced_processes, threads, [])

    return _median_us(read, readings)


def _cpus_us(cpus: int, readings: int) -> float:
    lines = [f"cpu{cpu} 123456 2 30000 4000000 5 6 7 8 0 0" for cpu in range(cpus)]
    stat = "\n".join(["cpu  1 2 3 4 5 6 7 8 0 0", *lines, "intr 1"])
    seconds = CpuSeconds(NullSink("bench"))
    time_ns = 0

    def read() -> None:
        nonlocal time_ns
        time_ns += 1_000_000_000
        seconds.write(stat, time_ns)

    return _median_us(read, readings)


if __name__ == "__main__":
    main()
