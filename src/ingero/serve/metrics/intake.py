"""Adds recorded seconds and findings to the sums of the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.discover.gpus import Gpu, GpuSample
from ingero.discover.system import SystemSample
from ingero.events import STATES, THROTTLE_REASONS
from ingero.ops import BY_ID
from ingero.serve.metrics import catalogue as metrics
from ingero.serve.metrics.facts import CellFacts, HostFacts, IntervalFacts, SecondFacts
from ingero.serve.metrics.registry import Labels, Registry
from ingero.step_counts import How
from ingero.store.vocabulary import HOST_OP_NAMES

_HZ_PER_MHZ = 1_000_000


class Intake:
    """Feeds one registry; used by one thread.

    drop_counters, causes: names to be shown as 0 until something is lost: in a series that begins above 0 Prometheus
    sees no growth. database: the recording's file.
    """

    def __init__(
        self,
        registry: Registry,
        drop_counters: Iterable[str] = (),
        causes: Iterable[str] = (),
        database: Path | None = None,
    ) -> None:
        self._registry, self._database = registry, database
        self._slowdowns: set[Labels] = set()  # those ongoing at the last sample of the GPUs
        self._lost_ns: dict[int, int] = {}  # by incident, as far as it has been counted
        self._open: dict[int, Labels] = {}
        self._waited_us: dict[tuple[str, str], int] = {}  # since boot, by resource and share of the tasks
        for counter in drop_counters:
            registry.add(metrics.DROPS, 0, counter)
        for cause in causes:
            registry.add(metrics.LOST_TIME, 0, cause)
        registry.add(metrics.DROPPED, 0)

    def second(self, second: SecondFacts) -> None:
        """Add a recorded second."""
        registry = self._registry
        self._calls(second.cells)
        self._host(second.host)
        self._intervals(second.intervals)
        for name, ns in zip(STATES, second.states_ns.tolist(), strict=True):
            registry.add(metrics.THREAD_TIME, ns / 1e9, name)
        for counter, count in second.drops.items():
            registry.add(metrics.DROPS, count, counter)
        registry.add(metrics.SWITCHES, second.switches)
        registry.add(metrics.PREEMPTIONS, second.involuntary_switches)
        registry.add(metrics.RECORDS, second.records)
        registry.set(metrics.TRACED_PROCESSES, second.traced_processes)
        registry.set(metrics.THREADS, second.threads)
        registry.set(metrics.CALLS_IN_FLIGHT, second.in_flight)
        registry.set(metrics.OVERHEAD, second.overhead_ratio)
        registry.set(metrics.LEVEL, second.level)
        registry.set(metrics.RECORDING_SIZE, _size_bytes(self._database))
        if second.agent:
            registry.add(metrics.AGENT_CPU, second.agent.cpu_ns / 1e9)
            registry.set(metrics.AGENT_MEMORY, second.agent.peak_rss_bytes)
        if second.system:
            self._system(second.system)
            self._gpus(second.gpus)

    def finding(self, change: Change) -> None:
        """Add an incident that was opened, updated or closed."""
        incident = change.incident
        labels = (incident.cause, incident.severity.name.lower())
        if incident.number not in self._lost_ns:
            self._registry.add(metrics.INCIDENTS, 1, *labels)
        counted_ns = self._lost_ns.get(incident.number, 0)
        self._registry.add(metrics.LOST_TIME, max(0, incident.lost_ns - counted_ns) / 1e9, incident.cause)
        self._lost_ns[incident.number] = max(counted_ns, incident.lost_ns)
        if change.kind is ChangeKind.CLOSED:
            self._open.pop(incident.number, None)
        else:
            self._open[incident.number] = labels
        self._registry.replace(metrics.ACTIVE_INCIDENTS, dict(Counter(self._open.values())))

    def dropped(self, count: int) -> None:
        """Count seconds or findings that were dropped on the way here."""
        self._registry.add(metrics.DROPPED, count)

    def _calls(self, cells: Sequence[CellFacts]) -> None:
        registry = self._registry
        for cell in cells:
            op = BY_ID.get(cell.op)
            if op is None:
                continue
            labels = (op.source.name.lower(), op.name)
            growth = cell.growth
            registry.add(metrics.CALLS, int(growth["count"]), *labels)
            registry.add(metrics.CALL_ERRORS, int(growth["errors"]), *labels)
            registry.add(metrics.CALL_NESTED, int(growth["nested"]), *labels)
            registry.add(metrics.CALL_BYTES, int(growth["size_bytes"]), *labels)
            registry.observe(metrics.CALL_DURATION, cell.histogram, int(growth["sum_ns"]), cell.max_ns, *labels)

    def _intervals(self, intervals: IntervalFacts) -> None:
        registry, total = self._registry, intervals.total
        registry.add(metrics.STEPS, total.steps - total.synced, How.REPETITION.value)
        registry.add(metrics.STEPS, total.synced, How.BOTH.value)
        registry.add(metrics.SYNCS, total.sync_intervals)
        for part in ("host", "blocked"):
            registry.add(metrics.STEP_TIME, max(0, getattr(intervals, f"{part}_ns")) / 1e9, part)
        for part in ("idle", "busy", "return_delay"):
            registry.add(metrics.SYNC_TIME, max(0, getattr(intervals, f"{part}_ns")) / 1e9, part)

    def _host(self, sums: Sequence[HostFacts]) -> None:
        for one in sums:
            labels = (one.source.name.lower(), HOST_OP_NAMES[one.source, one.op])
            for metric, traced, others in (
                (metrics.HOST_EVENTS, one.count, one.other_count),
                (metrics.HOST_BYTES, one.size_bytes, one.other_bytes),
                (metrics.HOST_TIME, one.duration_ns / 1e9, one.other_ns / 1e9),
            ):
                if traced or others:
                    self._registry.add(metric, traced, *labels, "traced")
                    self._registry.add(metric, others, *labels, "other")

    def _system(self, system: SystemSample) -> None:
        registry = self._registry
        busy = None if system.cpu_percent is None else system.cpu_percent / 100
        registry.set(metrics.CPU_UTILIZATION, busy)
        registry.set(metrics.LOAD_1M, system.load_avg[0])
        registry.set(metrics.MEMORY_UTILIZATION, system.mem_percent / 100)
        registry.set(metrics.MEMORY_AVAILABLE, system.mem_available_bytes)
        registry.set(metrics.MEMORY_LIMIT, system.mem_total_bytes)
        registry.set(metrics.SWAP_USED, system.swap_used_bytes, "used")
        for resource, pressure in system.pressure.items():
            for share, total_us in (("some", pressure.some_total_us), ("full", pressure.full_total_us)):
                before_us = self._waited_us.get((resource, share), total_us)
                self._waited_us[resource, share] = total_us
                registry.add(metrics.PRESSURE, max(0, total_us - before_us) / 1e6, resource, share)

    def _gpus(self, gpus: Sequence[tuple[Gpu, GpuSample]]) -> None:
        """Set the GPUs' last values; a GPU that does not answer any more has none."""
        values: dict[metrics.Metric, dict[Labels, float]] = {metric: {} for metric in _GPU_METRICS}
        for gpu, sample in gpus:
            used, total = sample.memory_used_bytes, sample.memory_total_bytes
            number = str(gpu.index)
            for metric, labels, value in (
                (metrics.GPU_INFO, (number, gpu.uuid, gpu.name), 1),
                (metrics.GPU_UTILIZATION, (number,), _ratio(sample.busy_percent)),
                (metrics.GPU_MEMORY_BUSY, (number,), _ratio(sample.memory_busy_percent)),
                (metrics.GPU_MEMORY_USAGE, (number,), used),
                (metrics.GPU_MEMORY_LIMIT, (number,), total),
                (metrics.GPU_MEMORY_UTILIZATION, (number,), used / total if used is not None and total else None),
                (metrics.GPU_POWER, ("gpu", number), sample.power_w),
                (metrics.GPU_TEMPERATURE, ("gpu", number), sample.temperature_c),
                (metrics.GPU_CLOCK, (number,), _hertz(sample.sm_clock_mhz)),
            ):
                if value is not None:
                    values[metric][labels] = value
            if sample.throttle_reasons is not None:
                for bit, name in THROTTLE_REASONS.items():
                    values[metrics.GPU_SLOWDOWN][name, number] = float(bool(sample.throttle_reasons & bit))
        for metric, points in values.items():
            self._registry.replace(metric, points)
        self._count_slowdowns(values[metrics.GPU_SLOWDOWN])

    def _count_slowdowns(self, points: dict[Labels, float]) -> None:
        going_on = {labels for labels, is_active in points.items() if is_active}
        for labels in points:
            self._registry.add(metrics.GPU_SLOWDOWNS, int(labels in going_on - self._slowdowns), *labels)
        self._slowdowns = going_on


_GPU_METRICS = (
    metrics.GPU_INFO,
    metrics.GPU_UTILIZATION,
    metrics.GPU_MEMORY_BUSY,
    metrics.GPU_MEMORY_USAGE,
    metrics.GPU_MEMORY_LIMIT,
    metrics.GPU_MEMORY_UTILIZATION,
    metrics.GPU_POWER,
    metrics.GPU_TEMPERATURE,
    metrics.GPU_CLOCK,
    metrics.GPU_SLOWDOWN,
)


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _size_bytes(database: Path | None) -> int | None:
    """Size of a database in WAL mode with its log; None: there is no file."""
    files = () if database is None else (database, database.with_name(f"{database.name}-wal"))
    sizes = [file.stat().st_size for file in files if file.exists()]
    return sum(sizes) if sizes else None


def _hertz(mhz: int | None) -> int | None:
    return None if mhz is None else mhz * _HZ_PER_MHZ
