"""Seconds of a busy recording, made up: as many processes, call sites, culprits and losses as asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.attach.kernel_side import CELL_OP_SHIFT, SLOT_SHIFT
from ingero.attach.objects import object_path
from ingero.capture.host.snapshots import AgentUsage
from ingero.capture.loop.period import period_until
from ingero.capture.loop.second import SecondOfCounts
from ingero.capture.sums.cells import CellGrowth, Cells
from ingero.capture.sums.culprits import CulpritTime
from ingero.capture.sums.host_sums import HostSum
from ingero.cli.live.state import GpuState, LiveState, Missing, ProbedLibrary, ProbeState, ProcessLine
from ingero.cli.live.window import ProcessSums, Window
from ingero.decode.btf import btf_of
from ingero.discover.gpus import Gpu, GpuSample
from ingero.discover.system import Pressure, SystemSample
from ingero.ops import BY_NAME, HostOp, IoOp, NetOp, Source, TcpOp
from ingero.step_counts import StepCount
from ingero.store import histograms
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

_CELL = btf_of(object_path("layouts")).dtype("cell")
_GIB = 1 << 30
_CALLS = (  # name, calls a second of one process, typical duration, calls inside others, bytes
    ("cudaStreamSynchronize", 120, 4_000_000, 0, 0),
    ("cudaLaunchKernel", 9_000, 4_100, 0, 0),
    ("cudaMemcpyAsync", 240, 9_000, 0, 1 << 20),
    ("cudaMalloc", 2, 600_000, 0, 1 << 22),
    ("cudaEventRecord", 480, 1_200, 0, 0),
    ("cuLaunchKernel", 3_000, 3_300, 1_500, 0),
    ("cuMemcpyAsync", 0, 0, 240, 0),
    ("cudaGraphLaunch", 30, 21_000, 0, 0),
    ("ncclAllReduce", 60, 15_000, 0, 1 << 24),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The size of a load. sites: call sites per operation and process."""

    processes: int
    sites: int = 4
    culprits: int = 6
    gpus: int = 1
    drops: int = 0


def cell(slot: int, name: str, caller: int, durations_ns: Array, *, nested: int = 0, errors: int = 0) -> CellGrowth:
    """The growth of one cell by calls of these durations."""
    growth = np.zeros(1, _CELL)
    growth["caller"], growth["count"], growth["nested"] = caller, len(durations_ns), nested
    growth["errors"], growth["sum_ns"] = errors, durations_ns.sum()
    growth["histogram"] = histograms.count(durations_ns)
    growth["state_ns"][0, :5] = (durations_ns.sum() * np.array([0.3, 0.1, 0, 0, 0.6])).astype(np.uint64)
    longest = int(durations_ns.max()) if len(durations_ns) else 0
    op = BY_NAME[name].id
    row = growth[0]
    return CellGrowth(slot=slot, op=op, caller=caller, growth=row, row=0, max_ns=longest, histogram=row["histogram"])


def _one_reading(cells: list[CellGrowth]) -> Cells:
    """The cells as rows of one array, as they are read from the kernel."""
    reading = np.asarray([one.growth for one in cells], _CELL)
    rows = [
        replace(one, growth=reading[row], row=row, histogram=reading[row]["histogram"]) for row, one in enumerate(cells)
    ]
    keys = np.asarray([one.slot << SLOT_SHIFT | one.op + 1 << CELL_OP_SHIFT for one in cells], np.uint64)
    return Cells(rows, keys, reading, np.arange(len(cells)))


def second(load: Load, number: int) -> SecondOfCounts:
    """Second `number` of a recording, always the same."""
    random = np.random.default_rng(number)
    one_process = []
    for name, count, typical_ns, nested, _ in _CALLS:
        for site in range(load.sites):
            share = count // load.sites + (site < count % load.sites)
            durations = (typical_ns * random.lognormal(0, 0.4, share)).astype(np.int64)
            one_process.append(cell(0, name, 1000 + site, durations, nested=nested))
    called = [one for one in one_process if one.growth["count"] or one.growth["nested"]]
    cells = _one_reading([replace(one, slot=slot) for slot in range(load.processes) for one in called])
    clocks = (np.array([2.0, 0.5, 0, 0.01, 9.0, 0.02, 0, 0]) * load.processes * 1e9).astype(np.int64)
    culprit_times = [
        CulpritTime(slot=i % max(1, load.processes), is_yielded=False, culprit_pid=900 + i, culprit_name=f"hog{i}",
               culprit_cgroup_id=1, ns=(load.culprits - i) * 21_000_000, switches=40 + i)
        for i in range(load.culprits if load.processes else 0)
    ]  # fmt: skip
    names = (
        "repaired_ns",
        "switch_in_missed",
        "offcpu_buffer_full",
        "wakeup_missed",
        "culprit_unknown_ns",
        "cells_full",
    )
    return SecondOfCounts(
        period=period_until(1_790_000_000_000_000_000 + number * SECOND_NS, SECOND_NS),
        traced_processes=load.processes,
        threads=12 * load.processes,
        cells=cells,
        states_ns=clocks,
        culprit_times=culprit_times,
        drops=dict.fromkeys(names[: load.drops], 1 + number),
        in_flight=0,
        switches=9_000 * load.processes,
        involuntary_switches=700 * load.processes,
        host=_host(load),
        records=120 * load.processes,
        system=_system(),
        agent=AgentUsage(cpu_ns=21_000_000, peak_rss_bytes=92 << 20),
    )


def _host(load: Load) -> list[HostSum]:
    if not load.processes:
        return [
            HostSum(source=Source.IO, op=IoOp.WRITE, count=0, other_count=31, other_bytes=1 << 20, other_ns=9_000_000)
        ]
    return [
        HostSum(source=Source.IO, op=IoOp.READ, count=210, size_bytes=27 << 20, duration_ns=84_000_000),
        HostSum(source=Source.IO, op=IoOp.WRITE, count=3, size_bytes=12_288, duration_ns=2_000_000, other_count=31),
        HostSum(source=Source.HOST, op=HostOp.PAGE_ALLOC, count=251, size_bytes=1 << 20),
        HostSum(source=Source.HOST, op=HostOp.MAJOR_FAULT, count=4),
        HostSum(source=Source.TCP, op=TcpOp.RETRANSMIT, count=2, size_bytes=2_896),
        HostSum(source=Source.NET, op=NetOp.SEND, count=88, size_bytes=1 << 22),
        HostSum(source=Source.NET, op=NetOp.RECEIVE, count=97, size_bytes=1 << 21),
    ]


def _system() -> SystemSample:
    def pressure(percent: float) -> Pressure:
        return Pressure(some_avg10_percent=percent, some_total_us=1, full_avg10_percent=0, full_total_us=0)

    return SystemSample(
        cpu_percent=71.2,
        mem_percent=41.0,
        mem_total_bytes=24 * _GIB,
        mem_available_bytes=14 * _GIB,
        swap_used_bytes=0,
        load_avg=(3.2, 4.1, 2.0),
        pressure={"cpu": pressure(12.4), "memory": pressure(0), "io": pressure(1.2)},
        throttling={},
    )


def gpu_state(count: int) -> GpuState:
    """The state of the GPUs of a load; the second one is slowed down."""
    gpus = tuple(
        Gpu(index=i, uuid=f"GPU-{i}", name="NVIDIA H100", memory_bytes=80 * _GIB, pci_bus_id="", max_sm_clock_mhz=1980)
        for i in range(count)
    )
    samples = tuple(
        GpuSample(
            uuid=gpu.uuid,
            busy_percent=87 - gpu.index,
            memory_busy_percent=40,
            memory_used_bytes=40 * _GIB,
            sm_clock_mhz=1980 - 300 * (gpu.index == 1),
            slowdowns=("power cap",) if gpu.index == 1 else (),
            power_w=612.0,
            temperature_c=63 + gpu.index,
            processes={4_000 + gpu.index: None},
        )
        for gpu in gpus
    )
    return GpuState(gpus=gpus, samples=samples, reason="" if gpus else "NVML: NVML Shared Library Not Found")


def window(load: Load, seconds: int = 12) -> Window:
    """A window of `seconds` seconds of this load."""
    filled = Window()
    for number in range(seconds):
        filled.add(second(load, number))
    return filled


def state(load: Load, filled: Window) -> LiveState:
    """The state that the live view would show for a window."""
    last = filled.last
    assert last is not None
    slots, ran_instead = filled.process_sums(), filled.ran_instead_ns()
    nothing = ProcessSums(calls=0, wait_ns=0)
    processes = tuple(
        ProcessLine(
            pid=4_000 + i,
            name="python3",
            user="alice",
            rank=i,
            world_size=load.processes,
            gpus=(i,) if i < load.gpus else (),
            calls=slots.get(i, nothing).calls,
            wait_ratio=slots.get(i, nothing).wait_ns / (filled.length_s * 1e9),
            ran_instead_ns=ran_instead[i],
        )
        for i in range(load.processes)
    )
    libraries = (
        ProbedLibrary(
            path="/opt/venv/lib/python3.12/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12", attached=85
        ),
        ProbedLibrary(path="/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15", attached=142, refused=1),
        ProbedLibrary(path="/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2", attached=17),
    )
    probes = ProbeState(
        mode="uprobe.session",
        libraries=libraries,
        sources=frozenset(Source),
        missing=(Missing(name="mark_victim", reason="OOM kills are seen as SIGKILL only: no such tracepoint"),),
    )
    ops = filled.ops()
    return LiveState(
        recorded_s=filled.recorded_s,
        window_s=filled.length_s,
        processes=processes,
        threads=last.threads,
        probes=probes if load.processes else ProbeState(mode="uprobe.session", is_resting=True),
        system=last.system,
        gpu=gpu_state(load.gpus),
        ops=ops,
        states_ns=filled.states_ns(),
        call_states_ns=filled.call_states_ns(),
        switches=sum(one.switches for one in filled.seconds()),
        involuntary_switches=sum(one.involuntary_switches for one in filled.seconds()),
        culprits=filled.culprits(),
        host=filled.host(),
        counts={number: StepCount(steps=1_200, sync_intervals=12) for number in range(load.processes)},
        drops=filled.drop_lines(),
        agent=last.agent,
        agent_ratio=filled.agent_ratio(),
        calls_per_s=filled.per_second(sum(op.count + op.nested for op in ops)),
        rows_per_s=filled.per_second(1_200 * load.processes),
        database="/var/lib/ingero/ingero.db",
        database_bytes=123 << 20,
    )
