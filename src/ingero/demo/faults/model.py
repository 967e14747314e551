"""What a fault is: what it needs, what must stand before the workload starts, and how it is switched on and off."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ingero.errors import IngeroError


class FaultError(IngeroError):
    """A fault cannot be injected, or does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A running workload. `knobs` is its GPUSIM_CTL file, `host_knobs` the file that it got with --knob."""

    pid: int
    knobs: Path
    host_knobs: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """How the workload must be started for the fault to find something to disturb.

    `module` of `ingero.demo.workloads`, extra `arguments`, and cgroup directories that it starts in.
    """

    module: str = "train"
    arguments: tuple[str, ...] = ()
    cgroups: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A fault in effect: the processes that cause it (none when it is a setting), and the cgroups it works through."""

    culprits: tuple[int, ...] = ()
    cgroups: tuple[Path, ...] = ()


class Recipe(abc.ABC):
    """One kind of fault. An instance is used once: `stage`, then `apply` as often as wanted inside of it."""

    def requires(self) -> str | None:
        """Return why it cannot run on this machine, None if it can."""
        return None

    def stage(self, scratch: Path) -> AbstractContextManager[Stage]:
        """Prepare files, cgroups and networks under names of this process; remove them at the end."""
        del scratch
        return nullcontext(Stage())

    @abc.abstractmethod
    def apply(self, target: Target) -> AbstractContextManager[Injection]:
        """Cause the fault inside the with-block; leave everything as it was."""
