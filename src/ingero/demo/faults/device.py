"""Faults of the simulated device, the bus and the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ingero.demo.faults.model import Injection, Recipe, Workload, WorkloadSetup
from ingero.demo.gpusim.knobs import Knobs

THERMAL_SLOWDOWN = 0x20  # nvmlClocksThrottleReasonSwThermalSlowdown


class DeviceKnob(Recipe):
    """Sets knobs of the simulated GPU to other values."""

    def __init__(self, *, arguments: tuple[str, ...] = (), **values: float) -> None:
        self._setup = WorkloadSetup(arguments=arguments)
        self._values = values

    def prepare(self, scratch: Path) -> AbstractContextManager[WorkloadSetup]:
        """Start the workload with what makes the knob matter."""
        del scratch
        return nullcontext(self._setup)

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Turn the knobs, and back."""
        with Knobs(workload.knobs) as knobs:
            before = {name: getattr(knobs, name) for name in self._values}
            _set(knobs, self._values)
            try:
                yield Injection()
            finally:
                _set(knobs, before)


def _set(knobs: Knobs, values: dict[str, float]) -> None:
    for name, value in values.items():
        setattr(knobs, name, value)
