"""The parts of a fault: what it requires, how the workload is set up for it, and how it is switched on and off."""

from __future__ import annotations

import abc
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ingero.errors import IngeroError


class FaultError(IngeroError):
    """A fault cannot be injected, or does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A running workload. `knobs` is its GPUSIM_CTL file, `host_knobs` the file of its option --knob."""

    pid: int
    knobs: Path
    host_knobs: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSetup:
    """How the workload must be started for the fault to find something to disturb.

    The `module` of `ingero.demo.workloads`, extra `arguments`, and the cgroup directories that it starts in.
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
    """One kind of fault. An instance is used once: `prepare`, then `apply` as often as wanted inside of it."""

    def requires(self) -> str | None:
        """Return why the fault cannot run on this host, None if it can."""
        return None

    def prepare(self, scratch: Path) -> AbstractContextManager[WorkloadSetup]:
        """Prepare files, cgroups and networks under names of this process; remove them at the end."""
        del scratch
        return nullcontext(WorkloadSetup())

    @abc.abstractmethod
    def apply(self, workload: Workload) -> AbstractContextManager[Injection]:
        """Cause the fault inside the with-block; leave everything as it was."""
