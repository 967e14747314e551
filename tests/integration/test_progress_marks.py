"""A loop that never waits for its stream shows how far that is by launches that wait for room in the full queue."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from ingero.capture.steps.mark_rows import QUEUE_DEPTH
from ingero.demo.gpusim.knobs import Knobs
from tests.integration.targets import record, rows, simulation

pytestmark = pytest.mark.integration

STEPS = 40  # of 80 launches each: three queues full
# before all ordinary threads: a launch that takes longer than usual only because of others is no full queue
TRAINER = [shutil.which("chrt"), "--fifo", "1", sys.executable, "-m", "ingero.demo.workloads.train"]


def test_launches_on_a_full_queue_mark_how_far_the_stream_is(tmp_path: Path) -> None:
    options = ["--pattern", "no-sync", "--steps", STEPS, "--us", 200, "--out", tmp_path / "steps"]
    recorded = record(simulation(tmp_path), [*TRAINER, *options])
    sql = "SELECT stream, position, queued, blocked_ns FROM progress_marks WHERE kind = 'full_queue' ORDER BY timestamp"
    marks = rows(recorded.database, sql)
    positions = [position for _, position, _, _ in marks]
    assert len(marks) > 10
    assert len({stream for stream, _, _, _ in marks}) == 1
    assert positions == sorted(set(positions))
    assert {queued - position for _, position, queued, _ in marks} == {QUEUE_DEPTH}
    assert all(blocked_ns > 0 for _, _, _, blocked_ns in marks)
    assert "marks_ring_full" not in recorded.drops


def test_launches_that_are_slow_by_themselves_mark_nothing(tmp_path: Path) -> None:
    """Each takes 60 us, of which the driver is to blame; a thousand are outstanding by all that is seen."""
    simulated = simulation(tmp_path)
    with Knobs(simulated.knobs) as knobs:
        knobs.launch_us = 60.0
        options = ["--pattern", "no-sync", "--steps", 5 * STEPS, "--us", 20, "--out", tmp_path / "steps"]
        recorded = record(simulated, [sys.executable, "-m", "ingero.demo.workloads.train", *options])
    marks = rows(recorded.database, "SELECT blocked_ns FROM progress_marks WHERE kind = 'full_queue'")
    steps = rows(recorded.database, "SELECT step_ns, blocked_launch_ns, flags & 8192 FROM steps")
    total_ns = sum(step_ns for step_ns, _, _ in steps)
    assert total_ns > 0
    assert sum(blocked_ns for (blocked_ns,) in marks) < 0.01 * total_ns
    assert sum(blocked_ns for _, blocked_ns, _ in steps) < 0.01 * total_ns
