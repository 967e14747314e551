"""Samples the host once a second: CPU, memory, swap, load, pressure and throttled cgroups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.cgroups import Throttling, read_throttling
from ingero.discover.processes import PROC

_KIB = 1024
_RESOURCES = ("cpu", "memory", "io")
_IDLE_FIELDS = (3, 4)  # idle and iowait of /proc/stat
_TIME_FIELDS = 8  # user to steal; guest time is already part of user


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Pressure stall information (PSI) of one resource.

    some, full: at least one task, or all of them; avg10 in percent of the last 10 s, total in us since boot.
    """

    some_avg10_percent: float
    some_total_us: int
    full_avg10_percent: float
    full_total_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSample:
    """One sample of the host.

    cpu_percent: busy share of all CPUs since the sample before; None in the first.
    load_avg: tasks running or in uninterruptible sleep, averaged over 1, 5 and 15 minutes.
    pressure: by cpu, memory and io; empty where the kernel has no PSI.
    throttling: by the path of the `cpu.stat` asked for; groups that are gone are left out.
    """

    cpu_percent: float | None
    mem_percent: float
    mem_total_bytes: int
    mem_available_bytes: int
    swap_used_bytes: int
    load_avg: tuple[float, float, float]
    pressure: Mapping[str, Pressure]
    throttling: Mapping[Path, Throttling]


class SystemSampler:
    """Takes samples of the host; CPU use is the growth of CPU times since the last one."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._last: tuple[int, int] | None = None
        self.stat = ""  # /proc/stat as last read

    def sample(self, cpu_stats: Sequence[Path] = ()) -> SystemSample:
        """Samples the host now.

        cpu_stats: the `cpu.stat` files (`cgroups.cpu_stat_file`) of the groups whose throttling is wanted.
        """
        memory = _memory(_text(self._proc / "meminfo"))
        total, available = memory.get("MemTotal", 0), memory.get("MemAvailable", 0)
        pressure = ((name, parse_pressure(_text(self._proc / "pressure" / name))) for name in _RESOURCES)
        throttling = ((path, read_throttling(path)) for path in cpu_stats)
        return SystemSample(
            cpu_percent=self._cpu_percent(),
            mem_percent=100 * (total - available) / total if total else 0.0,
            mem_total_bytes=total,
            mem_available_bytes=available,
            swap_used_bytes=memory.get("SwapTotal", 0) - memory.get("SwapFree", 0),
            load_avg=_load_avg(_text(self._proc / "loadavg")),
            pressure={name: value for name, value in pressure if value is not None},
            throttling={path: value for path, value in throttling if value is not None},
        )

    def _cpu_percent(self) -> float | None:
        self.stat = _text(self._proc / "stat")
        now = _cpu_times(self.stat)
        before, self._last = self._last, now
        if before is None or now[1] <= before[1]:
            return None
        # Idle time may step back when a CPU goes offline.
        return min(100.0, max(0.0, 100 * (now[0] - before[0]) / (now[1] - before[1])))


def parse_pressure(text: str) -> Pressure | None:
    """Parses a file of /proc/pressure; None if there is none. `full` of cpu is missing before Linux 5.13: 0."""
    found = {
        kind: (float(avg10), int(total))
        for kind, avg10, total in re.findall(r"^(some|full) avg10=([\d.]+) .*total=(\d+)", text, re.MULTILINE)
    }
    if "some" not in found:
        return None
    some, full = found["some"], found.get("full", (0.0, 0))
    return Pressure(
        some_avg10_percent=some[0], some_total_us=some[1], full_avg10_percent=full[0], full_total_us=full[1]
    )


def _cpu_times(stat: str) -> tuple[int, int]:
    """(busy, all) clock ticks of all CPUs since boot."""
    first = stat.partition("\n")[0].split()
    ticks = [int(value) for value in first[1 : 1 + _TIME_FIELDS]]
    total = sum(ticks)
    return total - sum(ticks[index] for index in _IDLE_FIELDS if index < len(ticks)), total


def _memory(meminfo: str) -> dict[str, int]:
    pairs = re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.MULTILINE)
    return {name: int(value) * _KIB for name, value in pairs}


def _load_avg(text: str) -> tuple[float, float, float]:
    values = [float(word) for word in text.split()[:3]]
    return (values[0], values[1], values[2]) if len(values) == 3 else (0.0, 0.0, 0.0)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
