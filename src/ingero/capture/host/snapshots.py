"""One row a second about the machine and about the agent itself."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingero.capture.loop.period import Period
from ingero.capture.records.rows import Sink
from ingero.capture.sums.cpu_seconds import CpuSeconds
from ingero.discover.cgroups import Throttling
from ingero.discover.system import Pressure, SystemSample, SystemSampler
from ingero.store.writing import tables
from ingero.store.writing.tables import Row

_MIB = 1 << 20


class Deadband:
    """Decides which snapshots differ enough to be stored; see SnapshotRows."""

    def __init__(self, percent: float, heartbeat_s: float) -> None:
        self._percent, self._heartbeat_ns = percent, int(heartbeat_s * 1e9)
        self._stored: tuple[float, ...] | None = None
        self._stored_ns = 0

    def passes(self, time_ns: int, sample: SystemSample) -> bool:
        """Whether the snapshot of this time is stored."""
        now = _levels(sample)
        if self._stored is not None and self._percent:
            is_due = time_ns - self._stored_ns >= self._heartbeat_ns
            pairs = zip(now, self._stored, strict=True)
            # below 1 (percent, MiB, task) a share of the value would be noise
            has_moved = any(abs(a - b) > max(abs(b), 1.0) * self._percent / 100 for a, b in pairs)
            if not is_due and not has_moved:
                return False
        self._stored, self._stored_ns = now, time_ns
        return True


def _levels(sample: SystemSample) -> tuple[float, ...]:
    """CPU and memory in percent, free memory and swap in MiB, load."""
    return (
        sample.cpu_percent or 0.0,
        sample.mem_percent,
        sample.mem_available_bytes / _MIB,
        sample.swap_used_bytes / _MIB,
        sample.load_avg[0],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentUsage:
    """Resources of the agent itself: CPU time since the sample before, and peak resident memory so far."""

    cpu_ns: int
    peak_rss_bytes: int


class SnapshotRows:
    """Writes `raw_snapshots`; pressure and own cost are growth since the row before.

    now_ns: unix ns. A row has the time at which the system was read, which on a busy host is later than the end of the
    second that it is of: growth between two readings is a share of nothing else than the time between them.
    deadband_percent: a row is stored only when CPU, memory, free memory, swap or load has moved by more than that since
    the row before, but every `heartbeat_s` at least; 0: every row.
    """

    def __init__(
        self, sink: Sink, now_ns: Callable[[], int], deadband_percent: float = 0, heartbeat_s: float = 0
    ) -> None:
        self._sink, self._now_ns = sink, now_ns
        self._deadband = Deadband(deadband_percent, heartbeat_s)
        self._sampler = SystemSampler()
        self._pressure = self._sampler.sample().pressure
        self._cpu_ns = agent_cpu_ns()
        self._throttling: dict[Path, Throttling] = {}
        self.last: SystemSample | None = None
        self._cpus = CpuSeconds(sink)
        self.agent_cpu_ns = self._unstored_cpu_ns = 0

    def write(self, period: Period, cpu_stats: Mapping[Path, int]) -> tuple[SystemSample, AgentUsage]:
        """Samples at the end of the period. cpu_stats: `cpu.stat` of the traced processes' cgroups -> their numbers."""
        sample = self.last = self._sampler.sample(list(cpu_stats))
        time_ns = self._now_ns()
        self._write_throttling(sample, period, cpu_stats)
        self._cpus.write(self._sampler.stat, time_ns)
        cpu_ns = agent_cpu_ns()
        self.agent_cpu_ns, self._cpu_ns = cpu_ns - self._cpu_ns, cpu_ns
        self._unstored_cpu_ns += self.agent_cpu_ns
        agent = AgentUsage(cpu_ns=self.agent_cpu_ns, peak_rss_bytes=agent_rss_bytes())
        if not self._deadband.passes(period.end_ns, sample):
            return sample, agent
        row = tables.SNAPSHOTS.rows(
            1,
            session=self._sink.session,
            time_ns=time_ns,
            cpu_percent=sample.cpu_percent,
            mem_percent=sample.mem_percent,
            mem_available_bytes=sample.mem_available_bytes,
            swap_used_bytes=sample.swap_used_bytes,
            load_avg=sample.load_avg[0],
            psi_cpu_some_ns=self._growth(sample, "cpu", "some"),
            psi_memory_some_ns=self._growth(sample, "memory", "some"),
            psi_memory_full_ns=self._growth(sample, "memory", "full"),
            psi_io_some_ns=self._growth(sample, "io", "some"),
            psi_io_full_ns=self._growth(sample, "io", "full"),
            agent_cpu_ns=self._unstored_cpu_ns,
            agent_rss_bytes=agent.peak_rss_bytes,
        )
        self._pressure, self._unstored_cpu_ns = sample.pressure, 0
        self._sink.append(tables.SNAPSHOTS, row)
        return sample, agent

    def _write_throttling(self, sample: SystemSample, period: Period, cpu_stats: Mapping[Path, int]) -> None:
        """Writes the cgroups that their CPU quota throttled since the sample before."""
        before, self._throttling = self._throttling, dict(sample.throttling)
        rows: list[Row] = []
        for path, now in self._throttling.items():
            then = before.get(path, now)
            if now.throttled_periods > then.throttled_periods:
                rows += tables.CGROUP_THROTTLING.rows(
                    1,
                    session=self._sink.session,
                    **period.columns(),
                    cgroup_id=cpu_stats[path],
                    nr_throttled=now.throttled_periods - then.throttled_periods,
                    throttled_ns=now.throttled_ns - then.throttled_ns,
                )
        self._sink.append(tables.CGROUP_THROTTLING, rows)

    def _growth(self, sample: SystemSample, kind: str, share: str) -> int | None:
        now, before = sample.pressure.get(kind), self._pressure.get(kind)
        if now is None or before is None:
            return None
        return (_total_us(now, share) - _total_us(before, share)) * 1000


def _total_us(pressure: Pressure, share: str) -> int:
    return pressure.some_total_us if share == "some" else pressure.full_total_us


def agent_cpu_ns() -> int:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def agent_rss_bytes() -> int:
    """Largest resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
