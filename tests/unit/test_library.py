"""A recording as Python objects: what notebooks and scripts get from `open_recording`."""

from __future__ import annotations

import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ingero
from ingero.demo.labeled_scenarios import LENGTH_S, SCENARIOS, record
from ingero.errors import IngeroError
from ingero.store.errors import NoDatabaseError, NotRecordedError
from ingero.store.user_sql.errors import SqlRefusedError

OLDER = Path(__file__).parents[1] / "data" / "ingero-0.x"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ingero.Recording]:
    path = tmp_path_factory.mktemp("library") / "hog.db"
    record(SCENARIOS["cpu-hog"], path)
    with ingero.open_recording(path) as opened:
        yield opened


def test_the_diagnosis_names_cause_and_culprit(recording: ingero.Recording) -> None:
    [incident] = recording.diagnose().incidents
    assert (incident.cause, [one.pid for one in incident.culprits]) == ("cpu-contention", [900])


def test_processes_and_sessions_are_records(recording: ingero.Recording) -> None:
    assert [(one.pid, one.name) for one in recording.processes] == [(100, "python")]
    assert [one.node for one in recording.sessions] == ["demo"]


def test_totals_are_columns_of_equal_length(recording: ingero.Recording) -> None:
    totals = recording.op_totals()
    assert {"name", "pid", "count", "sum_ns", "p99_ns", "run_ns", "stopped_ns"} <= set(totals)
    assert {len(column) for column in totals.values()} == {len(totals.rows)}
    counts = dict(zip(totals["name"], totals["count"], strict=True))
    assert counts["cudaLaunchKernel"] == 80 * len(recording.sync_intervals())


def test_sync_intervals_are_an_array_and_columns_of_one_dimension(recording: ingero.Recording) -> None:
    sync_intervals, columns = recording.sync_intervals(), recording.sync_interval_columns()
    assert (np.diff(sync_intervals["sync_end_ns"]) > 0).all()
    assert {column.shape for column in columns.values()} == {sync_intervals.shape}
    assert int(columns["sync_runq_ns"].sum()) == int(sync_intervals["sync_state_ns"][:, 1].sum()) > 0


def test_since_takes_the_end_of_the_recording(recording: ingero.Recording) -> None:
    assert recording.window("4s").duration_ns == 4_000_000_000
    assert 0 < len(recording.sync_intervals("4s")) < len(recording.sync_intervals())
    assert recording.window().duration_ns >= LENGTH_S * 1e9


def test_sql_answers_with_columns_and_rows(recording: ingero.Recording) -> None:
    answer = recording.sql("SELECT pid, name FROM processes")
    assert (dict(answer), answer.rows, answer.is_truncated) == (
        {"pid": [100], "name": ["python"]},
        [(100, "python")],
        False,
    )


def test_sql_cannot_change_anything(recording: ingero.Recording) -> None:
    with pytest.raises(SqlRefusedError):
        recording.sql("DELETE FROM events")


def test_what_an_older_version_did_not_record_is_said(tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    path.write_bytes(lzma.decompress((OLDER / "sample-gpu-node-01.db.xz").read_bytes()))
    with ingero.open_recording(path) as older:
        assert older.op_totals()["count"]
        assert older.diagnose().not_evaluated
        with pytest.raises(NotRecordedError):
            older.sync_intervals()


def test_a_missing_recording_comes_with_its_way_out(tmp_path: Path) -> None:
    with pytest.raises(NoDatabaseError) as caught:
        ingero.open_recording(tmp_path / "absent.db")
    assert isinstance(caught.value, IngeroError)
    assert "ingero trace" in caught.value.hint


def test_importing_the_package_imports_nothing_of_the_library() -> None:
    program = "import sys, ingero; print(sorted(name for name in sys.modules if name.startswith(('ingero', 'numpy'))))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ingero']"


def test_a_name_that_the_package_has_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = ingero.nothing_like_it
