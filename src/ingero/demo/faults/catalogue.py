"""The faults by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType

from ingero.demo.faults.cpu import LOWEST_PRIORITY, CpuHog, NiceTrainer, PinOneCpu
from ingero.demo.faults.device import THERMAL_SLOWDOWN, DeviceKnob
from ingero.demo.faults.disk import IoStorm
from ingero.demo.faults.host import Knob, SigStop
from ingero.demo.faults.memory import MemoryLimit, OomKill, PageFaultStorm
from ingero.demo.faults.model import FaultError, Injection, Recipe, Workload, WorkloadSetup
from ingero.demo.faults.network import TcpLoss
from ingero.demo.faults.quota import CfsQuota

_MIB = 1 << 20

# The keyword `culprit` names the disturbing processes, where there are any.
_RECIPES: Mapping[str, Callable[..., Recipe]] = MappingProxyType(
    {
        "cpu_hog": CpuHog,
        "cpu_hog_nice": lambda **k: CpuHog(nice=LOWEST_PRIORITY, **k),
        "worker_cpu_starved": lambda **k: CpuHog(cpu_ms=5, **k),
        "nice_trainer": NiceTrainer,
        "pin_one_cpu": PinOneCpu,
        "cfs_quota": CfsQuota,
        "io_storm": IoStorm,
        "slow_worker": lambda: Knob(worker_sleep_ms=25),
        "gil_hog": lambda: Knob(arguments=("--gil-hog", "0"), gil_duty=1),
        "sigstop": SigStop,
        "mem_reclaim": lambda: MemoryLimit(thrash=False),
        "mem_thrash": lambda: MemoryLimit(thrash=True),
        "oom": OomKill,
        "pgfault_storm": PageFaultStorm,
        "tcp_loss": TcpLoss,
        "gpu_throttle": lambda: DeviceKnob(kernel_scale=2.5, throttle_reasons=THERMAL_SLOWDOWN, sm_clock_mhz=792),
        "pcie_slow": lambda: DeviceKnob(arguments=("--nbytes", str(16 * _MIB)), pcie_gbps=0.5),
        "malloc_storm": lambda: DeviceKnob(arguments=("--churn",), malloc_us=3000),
        "launch_slow": lambda: DeviceKnob(launch_us=60),
        "gpu_hang": lambda: DeviceKnob(hang=1),
        "nccl_straggler": lambda: Knob(module="ddp", arguments=("--world", "2"), rank=1, worker_sleep_ms=20),
    }
)

NAMES = tuple(_RECIPES)


class Fault:
    """A fault by its name (`NAMES`); `options` go to its kind, such as `culprit="fluent-bit"` for a hog's name.

    >>> fault = Fault("cpu_hog")
    >>> with fault.prepare(scratch) as setup:  # start the workload as the setup says
    ...     with fault.apply(workload) as injection:  # the fault is in effect

    Raises:
        FaultError: there is no fault of that name.
    """

    def __init__(self, name: str, **options: object) -> None:
        if name not in _RECIPES:
            raise FaultError(f"there is no fault {name!r}", hint="faults: " + " ".join(NAMES))
        self.name = name
        self._recipe = _RECIPES[name](**options)

    def requires(self) -> str | None:
        """Return why it cannot run on this machine, None if it can."""
        return self._recipe.requires()

    def prepare(self, scratch: Path) -> AbstractContextManager[WorkloadSetup]:
        """Prepare what must stand before the workload starts; yields how to start it."""
        return self._recipe.prepare(scratch)

    def apply(self, workload: Workload) -> AbstractContextManager[Injection]:
        """Cause the fault inside the with-block; leave everything as it was."""
        return self._recipe.apply(workload)
