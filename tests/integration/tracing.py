"""Runs `ingero trace` beside a workload, as a user would, and opens what it recorded."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.agent import Agent, launched
from tests.integration.forked_agent import ForkedAgent, can_be_forked


class Tracer(Agent):
    """A running `ingero trace --json`; `messages` holds the lines read so far."""

    def stop(self) -> dict[str, int]:
        """Ends the recording in good order, and checks that it was; answers its losses by counter."""
        drops = super().stop()
        assert self.process.returncode == 0, self.stderr_text()
        return drops


@contextmanager
def tracing(
    folder: Path,
    *,
    pids: Sequence[int] = (),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
) -> Iterator[Tracer]:
    """A tracer that has attached its probes; leaving the block stops it. within: a command that runs it."""
    variables = {"PYTHONUNBUFFERED": "1", **(environment or {})}
    database = folder / "recording.db"
    popen = ForkedAgent if can_be_forked(variables, within) else subprocess.Popen
    with launched(
        Tracer, database, pids=pids, options=options, environment=variables, within=within, popen=popen
    ) as tracer:
        yield tracer
        if tracer.process.poll() is None:
            tracer.stop()
