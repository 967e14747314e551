"""`ingero check --recording`: what health checks ask, on recordings that go on, stand still and have ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.cli.check.recording import recording_state
from ingero.store.reader import open_reader
from ingero.store.records import SessionFacts
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer
from ingero.units import SECOND_NS
from tests.unit.run_ingero import run_ingero


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """A recording of this moment that goes on."""
    with Writer(tmp_path / "a.db", session=SessionFacts(uuid="u", started_ns=time.time_ns()), node="n1") as writer:
        yield writer


def write_second(writer: Writer, end_ns: int) -> None:
    row = tables.CPU_SECONDS.rows(
        1, session=writer.session, time_ns=end_ns, elapsed_ns=SECOND_NS, tick_ns=10_000_000, cpus="[]"
    )
    writer.append(tables.CPU_SECONDS, row)
    writer.flush()


def test_a_recording_whose_last_second_is_there_goes_on(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_second(writer, time.time_ns())
    code, printed, _ = run_ingero(monkeypatch, capsys, "check", "--recording", "--db", str(writer.path))
    assert (code, printed.partition(": ")[0]) == (0, f"recording into {writer.path}")
    code, printed, _ = run_ingero(monkeypatch, capsys, "check", "--recording", "--json", "--db", str(writer.path))
    assert (code, json.loads(printed)["recording"]) == (0, True)


def test_a_loop_that_stands_still_is_noticed_although_the_writer_lives(writer: Writer) -> None:
    now_ns = time.time_ns()
    write_second(writer, now_ns - 6 * SECOND_NS)
    with open_reader(writer.path) as reader:
        assert reader.is_live(now_ns)
    state = recording_state(writer.path, now_ns)
    assert not state.is_written
    assert "the last second was written 6.00 s ago" in state.found


def test_a_recording_without_a_second_yet_is_not_taken_for_one_that_goes_on(writer: Writer) -> None:
    writer.flush()
    assert "no second is written yet" in recording_state(writer.path, time.time_ns()).found


def test_a_clock_that_was_set_back_does_not_keep_the_old_seconds_fresh(writer: Writer) -> None:
    now_ns = time.time_ns()
    write_second(writer, now_ns + 3600 * SECOND_NS)
    assert not recording_state(writer.path, now_ns).is_written
    write_second(writer, now_ns)
    assert recording_state(writer.path, now_ns).is_written


def test_seconds_of_a_recording_before_are_not_those_of_this_one(writer: Writer) -> None:
    write_second(writer, time.time_ns())
    writer.close()
    assert "the last recording ended" in recording_state(writer.path, time.time_ns()).found
    with Writer(writer.path, session=SessionFacts(uuid="v", started_ns=time.time_ns()), node="n1") as second:
        second.flush()
        assert not recording_state(writer.path, time.time_ns()).is_written


def test_no_database_is_a_no_with_a_way_out_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, _ = run_ingero(monkeypatch, capsys, "check", "--recording", "--db", str(tmp_path / "none.db"))
    assert code == 1
    assert printed.startswith("not recording: ")
    assert "  fix: " in printed


def test_a_database_is_named_for_the_recording_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run_ingero(monkeypatch, capsys, "check", "--db", "a.db")
    assert (code, "--recording" in error) == (2, True)
