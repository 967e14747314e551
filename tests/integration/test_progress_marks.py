"""A loop that never waits for its stream shows how far that is by launches that wait for room in the full queue."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ingero.capture.mark_rows import QUEUE_DEPTH
from tests.integration.targets import record, rows, simulation

pytestmark = pytest.mark.integration

STEPS = 40  # of 150 launches each: six queues full


def test_launches_on_a_full_queue_mark_how_far_the_stream_is(tmp_path: Path) -> None:
    trainer = [sys.executable, "-m", "ingero.demo.workloads.train", "--pattern", "no-sync"]
    recorded = record(simulation(tmp_path), [*trainer, "--steps", STEPS, "--us", 200, "--out", tmp_path / "steps"])
    sql = "SELECT stream, position, queued, blocked_ns FROM progress_marks WHERE kind = 'full_queue' ORDER BY timestamp"
    marks = rows(recorded.database, sql)
    positions = [position for _, position, _, _ in marks]
    assert len(marks) > 10
    assert len({stream for stream, _, _, _ in marks}) == 1
    assert positions == sorted(set(positions))
    assert {queued - position for _, position, queued, _ in marks} == {QUEUE_DEPTH}
    assert all(blocked_ns > 0 for _, _, _, blocked_ns in marks)
    assert "marks_ring_full" not in recorded.losses
