"""When a recording is looked at while it is written."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from ingero.capture.budget.cpu_allowance import CpuAllowance
from ingero.capture.loop import live_findings
from ingero.capture.loop.live_findings import LiveFindings
from ingero.diagnose.incidents.incident_changes import Change
from ingero.diagnose.live import LiveDiagnosis
from ingero.store.records import SessionFacts
from ingero.store.writing.writer import Writer


@pytest.mark.parametrize(("longest_wait_s", "expected"), [(60.0, 2), (-1.0, 1)])
def test_whoever_stops_a_recording_waits_for_a_last_look_only_if_it_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest_wait_s: float, expected: int
) -> None:
    has_looked, looks = threading.Event(), 0

    def look(_diagnosis: LiveDiagnosis, *, is_last: bool, **_options: bool) -> list[Change]:
        del is_last
        nonlocal looks
        looks += 1
        has_looked.set()
        return []

    monkeypatch.setattr(LiveDiagnosis, "look", look)
    monkeypatch.setattr(live_findings, "_LONGEST_WAIT_S", longest_wait_s)
    session = SessionFacts(uuid="u", started_ns=1)
    with (
        Writer(tmp_path / "a.db", session=session, node="n") as writer,
        LiveFindings(writer, lambda _change: None) as findings,
    ):
        findings.second_stored()
        assert has_looked.wait(30)
    assert looks == expected


def test_calls_that_do_not_return_are_looked_at_whatever_looks_have_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_looked = threading.Semaphore(0)

    def look(_diagnosis: LiveDiagnosis, *, is_last: bool, **_options: bool) -> list[Change]:
        del is_last
        has_looked.release()
        return []

    monkeypatch.setattr(LiveDiagnosis, "look", look)
    monkeypatch.setattr(CpuAllowance, "spend", lambda _self, _spent_s: 1e9)
    with (
        Writer(tmp_path / "a.db", session=SessionFacts(uuid="u", started_ns=1), node="n") as writer,
        LiveFindings(writer, lambda _change: None) as findings,
    ):
        findings.second_stored()
        assert has_looked.acquire(timeout=30)
        findings.second_stored()
        assert not has_looked.acquire(timeout=0.5)
        findings.second_stored(hanging=1)
        assert has_looked.acquire(timeout=30)


def test_after_a_look_that_fails_looking_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_looked_again, looked = threading.Event(), list[LiveDiagnosis]()

    def look(diagnosis: LiveDiagnosis, *, is_last: bool, **_options: bool) -> list[Change]:
        del is_last
        looked.append(diagnosis)
        if len(looked) == 1:
            raise ZeroDivisionError
        has_looked_again.set()
        return []

    monkeypatch.setattr(LiveDiagnosis, "look", look)
    monkeypatch.setattr(live_findings, "_LONGEST_PAUSE_S", 0.01)
    with (
        Writer(tmp_path / "a.db", session=SessionFacts(uuid="u", started_ns=1), node="n") as writer,
        LiveFindings(writer, lambda _change: None) as findings,
    ):
        while not has_looked_again.is_set():
            findings.second_stored()
            has_looked_again.wait(0.01)
    assert looked[0] is not looked[-1]
    assert "a diagnosis failed" in caplog.text


def test_the_second_after_a_look_that_saw_a_drop_begin_is_hurried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, has_looked = [True, False], threading.Semaphore(0)
    hurried: list[bool] = []

    def look(diagnosis: LiveDiagnosis, *, is_last: bool, **_options: bool) -> list[Change]:
        hurried.append(findings.is_hurried())
        diagnosis.has_onset = not is_last and begin.pop(0)
        has_looked.release()
        return []

    monkeypatch.setattr(LiveDiagnosis, "look", look)
    with (
        Writer(tmp_path / "a.db", session=SessionFacts(uuid="u", started_ns=1), node="n") as writer,
        LiveFindings(writer, lambda _change: None) as findings,
    ):
        assert not findings.is_hurried()
        findings.second_stored()
        assert has_looked.acquire(timeout=30)
        until_s = time.monotonic() + 30
        while not findings.is_hurried() and time.monotonic() < until_s:
            pass
        assert findings.is_hurried()
        findings.second_stored()
        assert has_looked.acquire(timeout=30)
    assert not findings.is_hurried()
    assert hurried == [False] * 3, "a look has begun"
