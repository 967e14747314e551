"""Starts a workload as a fault requires it and watches the log of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ingero.demo.faults.catalogue import Fault
from ingero.demo.faults.model import Workload
from ingero.demo.workloads import steps
from ingero.demo.workloads.ddp import rank_path
from ingero.demo.workloads.program import Program
from ingero.demo.workloads.steps import Step

_POLL_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The running workload, and where its steps are logged (of rank 0, where there are ranks)."""

    program: Program
    workload: Workload
    log: Path

    def watch(self, enough: Callable[[list[Step]], bool]) -> list[Step]:
        """Return the steps that end from now on, as soon as they are `enough`.

        Raises:
            WorkloadError: the workload ended first.
        """
        since_ns, begin = time.monotonic_ns(), steps.whole_bytes(self.log)  # not all of a long log again and again
        while True:
            seen = steps.between(steps.read(self.log, begin), since_ns, time.monotonic_ns())
            if enough(seen):
                return seen
            if self.program.process.poll() is not None:
                self.program.finish()
                return seen
            time.sleep(_POLL_S)

    def watch_for(self, seconds: float) -> list[Step]:
        """Return the steps of the next `seconds`, at least one."""
        end = time.monotonic() + seconds
        return self.watch(lambda seen: bool(seen) and time.monotonic() >= end)


@contextmanager
def rehearse(
    fault: Fault, scratch: Path, environment: Mapping[str, str], *arguments: object, seconds: float = 60
) -> Iterator[Rehearsal]:
    """Start the fault's workload in `environment`, which names the simulator's libraries and GPUSIM_CTL.

    `seconds` bounds its life if the caller is killed; `arguments` are added to those that the fault wants.
    """
    log, host_knobs = scratch / f"{fault.name}.jsonl", scratch / f"{fault.name}.knob"
    with fault.prepare(scratch) as setup:
        command = ("--seconds", seconds, "--out", log, "--knob", host_knobs, *setup.arguments, *arguments)
        with Program.module(setup.module, *command, environment=environment, cgroups=setup.cgroups) as program:
            program.wait_for("ready")
            workload = Workload(pid=program.pid, knobs=Path(environment["GPUSIM_CTL"]), host_knobs=host_knobs)
            yield Rehearsal(
                program=program, workload=workload, log=log if setup.module == "train" else rank_path(log, 0)
            )
