"""The settings that make a disturbance cost a dose, a share of the wall time.

Settings come from the default loop's 6.5 ms a step (8 layers, 154 launches, 2 ms to decode a batch), measured on two
quiet cores; what a run really lost is measured by its pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bench.incidents.scenario import Sched
from ingero.demo.faults.cpu import CpuHog
from ingero.demo.faults.device import THERMAL_SLOWDOWN, DeviceKnob

STEP_MS = 6.5
DDP_STEP_MS = 14.0  # of two ranks on two cores
LAUNCHES = 154
LAUNCH_PYTHON_US = 3.0  # of the interpreter around each launch
DECODE_MS = 2.3  # of a worker for a batch, queue included
MAX_CLOCK_MHZ = 1980
MIB = 1 << 20

# What hogs at full duty (two for each CPU) cost the default loop by its way of waiting: a blocked wait is late when it
# ends, a spinning one shares its CPU all the time (four hogs on two cores, 6.5 ms a step).
HOG_LOSS: Mapping[Sched, float] = MappingProxyType({"block": 0.18, "spin": 0.45, "yield": 0.25})
STARVED_LOSS = 0.57  # the same with 5 ms to decode
DEMAND_US = MappingProxyType({"block": 61_000, "spin": 130_000, "yield": 130_000})  # of CPU in each 100 ms, traced
COLLECTION_MS = 18.0  # of 200,000 objects
PIPE_MS_PER_MIB = 3.7  # pickled, through a pipe, and unpickled
STORM_HIDDEN = 0.04  # of all time: the begin of each storm, which batches that lie ready hide
STORM_WORK, STORM_READS = (
    1.1,
    1.4,
)  # what a storm costs beside its length: less the longer it is, as some reads come through
LOST_PACKETS = 0.08  # for each whole of the time
RETRIES = 2  # calls of cudaMalloc more in a step whose allocation fails first


def more_ms(dose: float, step_ms: float = STEP_MS) -> float:
    """The ms to add to every step so that the share `dose` of the time is lost."""
    return step_ms * dose / (1 - dose)


def hog(dose: float, sched: Sched, full: float | None = None, cpu_ms: float | None = None) -> CpuHog:
    """Hogs that cost `dose`; more of them where full duty is not enough."""
    strength = dose / (full or HOG_LOSS[sched])
    return CpuHog(duty=min(1.0, strength), per_cpu=2 * max(1.0, strength), cpu_ms=cpu_ms)


def slow_worker_ms(dose: float, step_ms: float = STEP_MS) -> float:
    """Sleep per item; the first milliseconds are hidden by prefetching."""
    return step_ms / (1 - dose) - DECODE_MS


def storm_duty(dose: float) -> float:
    """The share of the time in which writers fill the disk's queue."""
    return min(1.0, STORM_HIDDEN + STORM_WORK * dose + STORM_READS * dose * dose)


def pcie_gbps(dose: float) -> float:
    """16 MiB a step: 1.4 of 7.8 ms at the usual 12 GB/s."""
    copy_ms = 16 * MIB / 12e6
    return 16 * MIB / 1e6 / (copy_ms + more_ms(dose, 7.8))


def launch_us(dose: float) -> float:
    """Launches hide behind the device until together they are longer than its work."""
    return 1000 * STEP_MS / (1 - dose) / LAUNCHES - LAUNCH_PYTHON_US


def throttled(dose: float) -> DeviceKnob:
    """Lower clocks, and NVML says why."""
    clock = round(MAX_CLOCK_MHZ * (1 - dose))
    return DeviceKnob(kernel_scale=1 / (1 - dose), throttle_reasons=THERMAL_SLOWDOWN, sm_clock_mhz=clock)


def lock_ms(dose: float) -> float:
    """Held h of every h + 2 ms on average, at random, a lock costs whoever comes by h * h / (2 * (h + 2)) ms."""
    more = more_ms(dose)
    return more + float((more * more + 4 * more) ** 0.5)


def gil_duty(dose: float) -> float:
    """Of every 20 ms; slices below 3 ms hide behind the device (measured: nothing at 0.15, half the time at 0.65)."""
    return 0.15 + dose
