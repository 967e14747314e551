"""Growth in snapshots has a period: since the snapshot before it of the same recording, and at least as long as it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.serve.dashboard.answers import snapshots
from ingero.serve.sql import run_sql
from ingero.serve.text.system_context import system_lines
from ingero.store.machine import grown_ratio
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

SECOND_NS = 1_000_000_000
BEGIN_NS = 1_790_000_000 * SECOND_NS
WHOLE = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 100 * SECOND_NS)


def record(path: Path, node: str, readings: list[tuple[float, float]]) -> None:
    """Snapshots at these seconds, which have grown by so many seconds of stalls."""
    with Writer(path, session=SessionFacts(uuid=node, started_ns=BEGIN_NS), node=node) as writer:
        for second, stalled in readings:
            row = tables.SNAPSHOTS.rows(
                1, session=writer.session, time_ns=BEGIN_NS + round(second * SECOND_NS), cpu_percent=50.0,
                psi_cpu_some_ns=round(stalled * SECOND_NS), agent_cpu_ns=SECOND_NS // 100,
            )  # fmt: skip
            writer.append(tables.SNAPSHOTS, row)


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    """Both under full pressure, read at almost the same times, as merged recordings are."""
    for node, shift in (("one", 0.0), ("two", 0.01)):
        record(tmp_path / "a.db", node, [(second + shift, 1.0) for second in range(1, 11)])
    return tmp_path / "a.db"


def test_a_period_begins_with_the_snapshot_before_of_the_same_recording(two_nodes: Path) -> None:
    with open_reader(two_nodes) as reader:
        assert [one.elapsed_ns for one in reader.snapshots(WHOLE)] == [None] * 2 + [SECOND_NS] * 18


def test_a_period_reaches_out_of_the_window(two_nodes: Path) -> None:
    later = Window(begin_ns=BEGIN_NS + round(5.5 * SECOND_NS), end_ns=WHOLE.end_ns)
    with open_reader(two_nodes) as reader:
        assert {one.elapsed_ns for one in reader.snapshots(later)} == {SECOND_NS}


def test_the_published_view_has_the_period(two_nodes: Path) -> None:
    answer = run_sql(two_nodes, "SELECT max(psi_cpu_some_ns * 1.0 / elapsed_ns) FROM system_snapshots")
    assert answer.rows == [(1.0,)]


def test_of_readings_with_wrong_times_no_pressure_is_above_one(tmp_path: Path) -> None:
    record(tmp_path / "a.db", "one", [(1, 0.2), (2, 1.38), (3, 0.5)])  # the second was read 0.38 s late
    with open_reader(tmp_path / "a.db") as reader:
        rows = reader.snapshots(WHOLE)
        assert [grown_ratio([one], "psi_cpu_some_ns") for one in rows] == [None, 1.0, 0.5]


@pytest.mark.parametrize("points", [2, 3, 5, 600])
def test_pressure_of_several_nodes_is_their_average(two_nodes: Path, points: int) -> None:
    with open_reader(two_nodes) as reader:
        found = snapshots(reader, WHOLE, points)["snapshots"]
    assert {one["psi_cpu_some_ratio"] for one in found} - {None} == {1.0}
    assert max(one["agent_cpu_ratio"] or 0 for one in found) == pytest.approx(0.01)


def test_explain_says_the_average_of_the_nodes(two_nodes: Path) -> None:
    with open_reader(two_nodes) as reader:
        lines = list(system_lines(reader, WHOLE, has_incident=False))
    assert "100% of the time (PSI)" in lines[-1]
