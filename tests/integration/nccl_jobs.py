"""Jobs of several ranks on the simulated NCCL, traced from their first call, with what the library saw of them."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ingero.demo.workloads.program import Program
from tests.integration.targets import Simulation, rows, simulation, wait_for_end, waiting
from tests.integration.tracing import Tracer, tracing

RANK = Path(__file__).parent / "nccl_rank.py"
_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Job:
    """The result of a job."""

    simulated: Simulation
    tracer: Tracer

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of the recording."""
        return rows(self.tracer.database, sql, *values)

    @property
    def drops(self) -> dict[str, int]:
        """The counters of dropped or corrected data that the tracer reported."""
        drops: dict[str, int] = self.tracer.messages[-1]["drops"]
        return drops


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A running job and its tracer."""

    ranks: list[Program]
    tracer: Tracer


@contextmanager
def rendezvous() -> Iterator[str]:
    """A path that the ranks' shared files begin with; short, because it is part of a 128-byte identity."""
    path = Path(f"/dev/shm/ingero-test-{os.getpid()}-{next(_numbers)}")
    try:
        yield str(path)
    finally:
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink()


@contextmanager
def ranks(simulated: Simulation, scenario: str, count: int, meeting: str) -> Iterator[list[Program]]:
    """The processes of a job, running from the start."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Program(
                    [sys.executable, str(RANK), scenario, meeting, str(rank), str(count)],
                    environment=simulated.environment,
                )
            )
            for rank in range(count)
        ]


@contextmanager
def traced_ranks(simulated: Simulation, scenario: str, count: int, meeting: str, *options: str) -> Iterator[Traced]:
    """A job that is traced from the first call of its ranks on."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                waiting(simulated, [sys.executable, RANK, scenario, meeting, rank, count], gate_name=f"go{rank}")
            )
            for rank in range(count)
        ]
        pids = [process.pid for process in processes]
        tracer = stack.enter_context(tracing(simulated.folder, pids=pids, options=options))
        yield Traced(ranks=[process.go() for process in processes], tracer=tracer)


def job_of(folder: Path, scenario: str, count: int, *options: str, devices: int = 0, host: Path | None = None) -> Job:
    """Traces a job from the first call of its ranks to their end."""
    simulated = simulation(folder, devices=devices or count)
    if host:
        simulated = replace(simulated, environment={**simulated.environment, "NCCL_HOST": str(host)}, nccl=host)
    with rendezvous() as meeting, traced_ranks(simulated, scenario, count, meeting, *options) as traced:
        for program in traced.ranks:
            program.finish()
        wait_for_end(traced.tracer)
    return Job(simulated=simulated, tracer=traced.tracer)
