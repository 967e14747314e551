"""What the agent's own processes take from a program is charged to the agent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.integration.targets import record, rows, simulation

pytestmark = [pytest.mark.integration, pytest.mark.alone]  # readers of agents beside it are strangers


def test_who_reads_foreign_files_is_charged_as_the_agent(tmp_path: Path) -> None:
    """All of them on one CPU, so that they take it from the program."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        trainer = [sys.executable, "-m", "ingero.demo.workloads.train", "--seconds", 4, "--out", tmp_path / "steps"]
        recorded = record(simulation(tmp_path), trainer)
    finally:
        os.sched_setaffinity(0, cpus)
    charged = rows(recorded.database, "SELECT DISTINCT culprit_pid FROM culprits WHERE culprit_name LIKE 'ingero-%'")
    assert charged == rows(recorded.database, "SELECT agent_pid FROM raw_sessions")
