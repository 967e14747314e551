"""Makes a situation: starts its programs, records them without it and with it, and knows how fast they were."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.hangs import DEFAULT_LIMITS
from bench.situations.program import BEGUN, STEPS
from ingero.demo.faults.processes import tree
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads import steps
from ingero.demo.workloads.program import Program, WorkloadError
from ingero.units import SECOND_NS
from tests.integration.tracing import Tracer, tracing

_STARTS_NS, _SETTLES_NS = 2 * SECOND_NS, SECOND_NS  # of an agent, and of a situation: no part of the rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """For how long it is recorded without the situation, and with it."""

    without_s: float = 10.0
    with_s: float = 15.0


SHORT = Times(without_s=4.0, with_s=5.0)


@dataclass
class Situation:
    """One situation while it is made.

    name: of its module. folder: for what its programs share, and for the recording. stack: ends its programs, the last
    one first. pids: of its programs, by their names. rates: steps a second without the situation, and with it.
    devices: of the simulated driver, to be set before the first start.
    """

    name: str
    folder: Path
    stack: ExitStack
    times: Times
    pids: dict[str, int] = field(default_factory=dict)
    rates: tuple[float, float] = (0.0, 0.0)
    devices: int = 1
    _programs: dict[str, Program] = field(default_factory=dict)

    def start(self, role: str, *words: object, name: str = "", variables: Mapping[str, str] | None = None) -> list[str]:
        """Starts a role of the module and waits until it is ready; returns what it announces.

        variables: of its environment, beside those of all roles.

        Raises:
            WorkloadError: it ended before.
        """
        module = f"{__package__}.{self.name}"
        command = [sys.executable, "-m", module, "--role", role, str(self.folder), *map(str, words)]
        merged = {**os.environ, **(variables or {}), **self._driver()}
        program = self.stack.enter_context(Program(command, environment=merged))
        self._programs[name or role], self.pids[name or role] = program, program.pid
        return program.wait_for("ready")[1:]

    def name_child(self, parent: str, name: str, number: int = 1) -> None:
        """Gives a child of a program a name; number: from 1 on."""
        self.pids[name] = tree(self.pids[parent])[number]

    def record(self, *names: str) -> None:
        """Records these programs, by an agent with its own limits.

        Raises:
            BenchError, WorkloadError: the agent or a program ended meanwhile.
        """
        pids = [self.pids[name] for name in names]
        with tracing(self.folder, pids=pids, options=DEFAULT_LIMITS, environment=self._driver()) as tracer:
            traced_ns = time.monotonic_ns()
            self._wait(tracer, self.times.without_s)
            begun_ns = time.monotonic_ns()
            (self.folder / BEGUN).touch()
            self._wait(tracer, self.times.with_s)
            end_ns = time.monotonic_ns()
        self.rates = self._rate(traced_ns + _STARTS_NS, begun_ns), self._rate(begun_ns + _SETTLES_NS, end_ns)

    def _driver(self) -> dict[str, str]:
        """The variables with which programs find the simulated GPU, and the agent its NVML."""
        return environment(build(), ctl=self.folder / "knobs", sched="block", devices=self.devices)

    def _wait(self, tracer: Tracer, seconds: float) -> None:
        """Reads what the agent says of its seconds, while all programs live."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            tracer.wait_for("second")
            for name, program in self._programs.items():
                if (status := program.process.poll()) is not None:
                    raise WorkloadError(f"{name} ended with {status}: {''.join(program.errors)[-2000:]}")

    def _rate(self, begin_ns: int, end_ns: int) -> float:
        made = steps.between(steps.read(self.folder / STEPS), begin_ns, end_ns)
        return len(made) * SECOND_NS / (end_ns - begin_ns)
