"""The host in a recording, besides its processes: GPU samples, CPU seconds, scheduling, NUMA nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ingero.store.conditions import within
from ingero.store.records import Snapshot

_CPU_PARTS = ("busy_ns", "idle_ns", "iowait_ns", "irq_ns", "steal_ns")

# One CPU in the elapsed_ns before time_ns, to one clock tick (10 ms). busy is without interrupts (irq) and stolen time,
# which are 0 where the kernel does not account them.
CPU_SECOND_DTYPE = np.dtype([(name, "<i8") for name in ("time_ns", "elapsed_ns", "cpu", *_CPU_PARTS)])


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One sample of one GPU; None where it or its driver does not say.

    gpu_percent: share of the last sample period with any kernel running; it does not show how full the GPU was.
    asked_ns: how long the recorder was in the driver to query all GPUs at that time.
    throttle_reasons: NVML's bits (events.THROTTLE_REASONS). processes: (pid, memory in bytes). sm_percents: by pid, the
    share of the last sample period with a kernel of this process running, where the driver reports it. names: by pid.
    """

    time_ns: int
    uuid: str
    gpu_index: int
    asked_ns: int
    gpu_percent: int | None
    memory_percent: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    throttle_reasons: int | None
    power_mw: int | None
    temperature_c: int | None
    pcie_generation: int | None
    pcie_lanes: int | None
    processes: tuple[tuple[int, int | None], ...]
    sm_percents: Mapping[int, int] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Scheduling parameters of a thread from time_ns on, until its next row.

    process: None for threads seen only as culprits. cpus_allowed: such as 0-3,8. cpu_weight: of its cgroup against
    sibling cgroups, 100 by default. quota_us, period_us: None without a quota. io_limits: JSON, a list of
    [major:minor, limit as in `io.max`, path of the cgroup that has it].
    """

    time_ns: int
    process: int | None
    pid: int
    tid: int
    nice: int
    policy: str
    rt_priority: int
    cpus_allowed: str
    cpu_weight: int | None
    quota_us: int | None
    period_us: int | None
    io_limits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """CPUs and GPUs that are near each other. cpus: such as 0-15,32-47; gpus: uuids."""

    node: int
    cpus: str
    gpus: tuple[str, ...]


_GPU_COLUMNS = tuple(name for name in GpuUse.__dataclass_fields__ if name not in ("sm_percents", "names"))

GPU_SAMPLES_SQL = (
    f"SELECT {', '.join(_GPU_COLUMNS)} FROM raw_gpu_samples "
    "WHERE time_ns >= :begin AND time_ns < :end ORDER BY time_ns, gpu_index"
)

# What a snapshot has grown by since the one before it of the same recording: pressure never by more than what lies
# between the two readings. Older recorders wrote the time of the second before they read, up to a second too early or
# late, so that a growth may be longer than the difference of the times; then the period was at least that long.
_SINCE_THE_ONE_BEFORE = (
    "n.time_ns - (SELECT b.time_ns FROM raw_snapshots b WHERE b.session = n.session AND b.time_ns < n.time_ns "
    "ORDER BY b.time_ns DESC LIMIT 1)"
)
_GROWTHS = ("psi_cpu_some_ns", "psi_memory_some_ns", "psi_io_some_ns")
_ELAPSED = f"max({_SINCE_THE_ONE_BEFORE}, {', '.join(f'coalesce(n.{name}, 0)' for name in _GROWTHS)})"

SNAPSHOTS_SQL = (
    f"SELECT {', '.join(_ELAPSED if name == 'elapsed_ns' else f'n.{name}' for name in Snapshot.__dataclass_fields__)} "
    f"FROM raw_snapshots n WHERE {within('n.time_ns')} ORDER BY n.time_ns"
)

CPU_SECONDS_SQL = (
    "SELECT time_ns, elapsed_ns, tick_ns, cpus FROM raw_cpu_seconds WHERE time_ns > :begin AND time_ns <= :end "
    "ORDER BY time_ns"
)

# The parameters in force when the window began, and every change in it. What an earlier recording in the same file
# saw is not in force any more.
SCHEDULING_SQL = (
    f"SELECT {', '.join(Scheduling.__dataclass_fields__).replace('process', 'nullif(process, 0)')} "
    "FROM raw_scheduling s WHERE time_ns < :end AND (:process IS NULL OR process = :process) AND (time_ns >= :begin "
    "OR time_ns = (SELECT max(o.time_ns) FROM raw_scheduling o WHERE o.tid = s.tid AND o.time_ns <= :begin "
    "AND o.session = s.session AND o.pid = s.pid) AND EXISTS (SELECT 1 FROM raw_sessions n "
    "WHERE n.session = s.session AND coalesce(n.stopped_ns, n.last_seen_ns) >= :begin)) ORDER BY time_ns, pid, tid"
)


def grown_ratio(snapshots: Iterable[Snapshot], name: str) -> float | None:
    """Growth of a column (`psi_..._ns`, `agent_cpu_ns`) as a share of the elapsed time; the average over several
    nodes. None where no snapshot has both.
    """
    pairs = ((getattr(snapshot, name), snapshot.elapsed_ns) for snapshot in snapshots)
    known = [(grown, elapsed) for grown, elapsed in pairs if grown is not None and elapsed]
    return sum(grown for grown, _ in known) / sum(elapsed for _, elapsed in known) if known else None


def gpu_use(row: Sequence[object]) -> GpuUse:
    """The GPU sample of a row of `GPU_SAMPLES_SQL`."""
    values = dict(zip(_GPU_COLUMNS, row, strict=True))
    listed = json.loads(str(values.pop("processes")))
    processes = tuple((pid, used) for pid, used, *_ in listed)
    sm_percents = {one[0]: one[2] for one in listed if len(one) > 2 and one[2] is not None}
    names = {one[0]: one[3] for one in listed if len(one) > 3 and one[3]}
    return GpuUse(processes=processes, sm_percents=sm_percents, names=names, **values)  # type: ignore[arg-type]  # the columns of a STRICT table


def cpu_seconds(rows: Sequence[tuple[int, int, int, str]]) -> npt.NDArray[np.void]:
    """Rows of `CPU_SECONDS_SQL` as an array of `CPU_SECOND_DTYPE`, one element per CPU and row."""
    numbers = [
        (time_ns, elapsed_ns, cpu, *(ticks * tick_ns for ticks in parts))
        for time_ns, elapsed_ns, tick_ns, cpus in rows
        for cpu, *parts in json.loads(cpus)
    ]
    return np.array(numbers, CPU_SECOND_DTYPE)
