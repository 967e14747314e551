"""Faults of the simulated device, the bus and the driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ingero.demo.faults.model import Injection, Recipe, Stage, Target
from ingero.demo.gpusim.knobs import Knobs

THERMAL_SLOWDOWN = 0x20  # nvmlClocksThrottleReasonSwThermalSlowdown


class DeviceKnob(Recipe):
    """Some knobs of the simulator on other values."""

    def __init__(self, *, arguments: tuple[str, ...] = (), **values: float) -> None:
        self._stage = Stage(arguments=arguments)
        self._values = values

    def stage(self, scratch: Path) -> AbstractContextManager[Stage]:
        """Start the workload with what makes the knob matter."""
        del scratch
        return nullcontext(self._stage)

    @contextmanager
    def apply(self, target: Target) -> Iterator[Injection]:
        """Turn the knobs, and back."""
        with Knobs(target.knobs) as knobs:
            before = {name: getattr(knobs, name) for name in self._values}
            _set(knobs, self._values)
            try:
                yield Injection()
            finally:
                _set(knobs, before)


def _set(knobs: Knobs, values: dict[str, float]) -> None:
    for name, value in values.items():
        setattr(knobs, name, value)
