"""A diagnosis every second finds what one afterwards would, tells it once, and lets it go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.diagnose.incidents.incident_changes import ChangeKind
from tests.unit.diagnose.causes.requests import GIB, refused
from tests.unit.live_recording import HEALTHY, HOGGED, SECOND_NS, live, stress


def test_a_healthy_recording_tells_nothing(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(40)
        assert recording.reported() == []


def test_an_incident_is_opened_within_two_seconds_and_closed_after_it(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(12, HOGGED, hog=stress)
        recording.seconds(10)
        opened_at, opened = recording.changes[0]
        assert (opened.kind, opened.incident.cause) == (ChangeKind.OPENED, "cpu-contention")
        assert opened_at <= 8 + 2
        kinds = [kind for kind, cause in recording.reported() if cause == "cpu-contention"]
        assert (kinds[0], kinds[-1], kinds.count("opened"), kinds.count("closed")) == ("opened", "closed", 1, 1)


def test_a_closed_incident_has_its_begin_its_end_and_all_of_its_loss(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(12, HOGGED, hog=stress)
        recording.seconds(10)
        closed = next(change.incident for _, change in recording.changes if change.kind is ChangeKind.CLOSED)
        assert closed.end_ns is not None
        assert (closed.start_ns - BEGIN_NS) / 1e9 == pytest.approx(8, abs=0.2)
        assert (closed.end_ns - BEGIN_NS) / 1e9 == pytest.approx(20, abs=0.2)
        assert closed.lost_ns == pytest.approx(12 * SECOND_NS * 2.45 / 10, rel=0.15)


def test_an_incident_longer_than_the_look_back_stays_one_against_the_reference_from_before(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(70, HOGGED, hog=stress)
        told = recording.reported()
        assert told.count(("opened", "cpu-contention")) == 1
        assert "closed" not in [kind for kind, _ in told]
        last = recording.changes[-1][1].incident
        assert last.start_ns - BEGIN_NS == pytest.approx(8 * SECOND_NS, abs=0.2 * SECOND_NS)


def test_what_comes_back_much_later_is_a_new_incident_against_the_same_reference(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(6)
        recording.seconds(6, HOGGED, hog=stress)
        recording.seconds(70)
        recording.seconds(6, HOGGED, hog=stress)
        opened = [change.incident.number for _, change in recording.changes if change.kind is ChangeKind.OPENED]
        assert opened == [1, 2]


def test_a_pause_longer_than_the_look_back_keeps_the_reference_from_before(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.pause(80)
        recording.seconds(12, HOGGED, hog=stress)
        assert ("opened", "cpu-contention") in recording.reported()


def test_a_call_that_is_open_as_a_second_ends_is_told_at_once(tmp_path: Path) -> None:
    """A second is a little longer than it is called, and open calls are looked at when it has ended."""
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.pause(1)
        recording.open_sync(since_s=8.0, at_s=10.0015)
        recording.pause(1)
        assert recording.reported() == [("opened", "hung-call")]


def test_a_loss_without_an_owner_is_told_only_when_it_lasts(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(2, HOGGED)
        assert recording.reported() == []
        recording.seconds(4, HOGGED)
        assert recording.reported()[0] == ("opened", "unexplained")


def test_contention_is_told_when_a_second_look_sees_it_too(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(1, HOGGED, hog=stress)
        assert (recording.reported(), recording.tracker.is_undecided) == ([], True)
        recording.seconds(1, HOGGED, hog=stress)
        assert (recording.reported(), recording.tracker.is_undecided) == ([("opened", "cpu-contention")], False)


def test_contention_that_has_lasted_when_it_is_first_seen_is_told_at_once(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(1, HOGGED, hog=stress, is_looked_at=False)
        recording.seconds(1, HOGGED, hog=stress)
        assert recording.reported() == [("opened", "cpu-contention")]


def test_a_slower_device_is_not_told_before_its_driver_has_said_why(tmp_path: Path) -> None:
    def clocks(run: ScriptedRun, _trainer: Actor, second: int) -> None:
        """One sample a second, but that of the first slow second comes with the next."""
        for sampled in {8: (), 9: (8, 9)}.get(second, (second,)):
            run.gpu(sampled + 0.99, mhz=1980 if sampled < 8 else 1320, reasons=0 if sampled < 8 else 0x20)

    with live(tmp_path) as recording:
        recording.seconds(8, hog=clocks)
        recording.seconds(3, Step(busy_ms=9), hog=clocks)
        assert ("opened", "gpu-slower") not in recording.reported()
        assert ("opened", "gpu-throttled") in recording.reported()


def test_a_device_that_a_stranger_shares_is_not_told_as_a_slower_one_first(tmp_path: Path) -> None:
    def neighbor(run: ScriptedRun, _trainer: Actor, second: int) -> None:
        """The driver does not answer in the first second with the other."""
        if second == 8:
            return
        run.gpu(second + 0.75, processes=((100, 1 << 30), *(((300, 1 << 30),) if second >= 8 else ())))

    with live(tmp_path) as recording:
        recording.seconds(8, hog=neighbor)
        recording.seconds(1, Step(busy_ms=18), hog=neighbor, is_looked_at=False)
        recording.seconds(9, Step(busy_ms=18), hog=neighbor)
        second, change = recording.changes[0]
    assert (change.kind, change.incident.cause, second) == (ChangeKind.OPENED, "gpu-contention", 8 + 3)


def test_a_stranger_that_took_the_cpu_before_it_came_to_the_device_is_not_told_as_a_slower_one(tmp_path: Path) -> None:
    """As a program does that starts: the lost time began before, with another cause."""

    def starting(run: ScriptedRun, trainer: Actor, second: int) -> None:
        """It starts for four seconds."""
        if 8 <= second < 12:
            stress(run, trainer, second)
        run.gpu(second + 0.75, processes=((100, 1 << 30), *(((300, 1 << 30),) if second >= 12 else ())))

    with live(tmp_path) as recording:
        recording.seconds(8, hog=starting)
        recording.seconds(4, HOGGED, hog=starting)
        recording.seconds(9, Step(busy_ms=18), hog=starting)
        told = [cause for kind, cause in recording.reported() if kind == "opened"]
    assert told == ["cpu-contention", "gpu-contention"]


def test_a_request_for_memory_that_may_be_tried_again_is_not_told_yet(tmp_path: Path) -> None:
    def retrying(run: ScriptedRun, trainer: Actor, second: int) -> None:
        """It fails just before the second ends and succeeds just after."""
        if second == 8:
            refused(run, trainer, second + 0.99, 2 * GIB)
        if second == 9:
            run.call(trainer, "cudaMalloc", second + 0.05, 0.8, arg0=2 * GIB)

    def refusing(run: ScriptedRun, trainer: Actor, second: int) -> None:
        if second == 12:
            refused(run, trainer, second + 0.99, 2 * GIB)

    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(1, hog=retrying, busy_s=0.95)
        recording.seconds(3, hog=retrying)
        assert recording.reported() == []
        recording.seconds(3, hog=refusing)
        assert ("opened", "gpu-out-of-memory") in recording.reported()


def test_a_slower_device_is_told_where_its_driver_says_nothing_of_it(tmp_path: Path) -> None:
    def driver(run: ScriptedRun, _trainer: Actor, second: int) -> None:
        run.gpu(second + 0.75, processes=((100, 1 << 30),))

    with live(tmp_path) as recording:
        recording.seconds(8, hog=driver)
        recording.seconds(4, Step(busy_ms=9), hog=driver)
        assert ("opened", "gpu-slower") in recording.reported()


def test_a_device_that_is_slower_every_other_second_is_told_as_its_driver_speaks_after_the_first(
    tmp_path: Path,
) -> None:
    """One sample while it was slower, and one in the healthy part of a second after it."""

    def driver(run: ScriptedRun, _trainer: Actor, second: int) -> None:
        run.gpu(second + 0.5, processes=((100, 1 << 30),))

    def healthy_again(run: ScriptedRun, trainer: Actor, second: int) -> None:
        run.train(trainer, second + 0.2, second + 0.95, HEALTHY)
        driver(run, trainer, second)

    with live(tmp_path) as recording:
        recording.seconds(8, hog=driver)
        recording.seconds(1, Step(busy_ms=12), hog=driver)
        assert recording.reported() == []
        recording.seconds(1, Step(busy_ms=12), hog=healthy_again, busy_s=0.2)
        assert recording.reported() == [("opened", "gpu-slower")]


def test_a_slower_device_is_told_when_samples_of_its_driver_do_not_come_any_more(tmp_path: Path) -> None:
    def driver(run: ScriptedRun, _trainer: Actor, second: int) -> None:
        if second < 8:
            run.gpu(second + 0.75, processes=((100, 1 << 30),))

    with live(tmp_path) as recording:
        recording.seconds(8, hog=driver)
        recording.seconds(4, Step(busy_ms=9), hog=driver)
        assert ("opened", "gpu-slower") in recording.reported()


def test_an_open_incident_stays_open_while_launches_are_no_longer_traced(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(4, HOGGED, hog=stress)
        recording.seconds(12, replace(HOGGED, is_untraced=True), hog=stress)
        assert recording.reported().count(("opened", "cpu-contention")) == 1
        assert ("closed", "cpu-contention") not in recording.reported()
        recording.seconds(12, replace(HEALTHY, is_untraced=True))
        closed = [change.incident for _, change in recording.changes if change.kind is ChangeKind.CLOSED]
        assert [(one.number, one.cause) for one in closed] == [(1, "cpu-contention")]
        assert ((closed[0].end_ns or 0) - BEGIN_NS) / 1e9 == pytest.approx(24, abs=1.5)


def test_an_incident_that_is_over_when_launches_are_no_longer_traced_is_closed(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(4, HOGGED, hog=stress)
        recording.seconds(10, replace(HEALTHY, is_untraced=True))
        closed = next(change.incident for _, change in recording.changes if change.kind is ChangeKind.CLOSED)
        assert ((closed.end_ns or 0) - BEGIN_NS) / 1e9 == pytest.approx(12, abs=0.5)


def test_an_incident_that_ended_before_launches_were_given_up_does_not_come_back(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(4, HOGGED, hog=stress)
        recording.seconds(4)
        recording.seconds(10, replace(HOGGED, is_untraced=True))
        closed = next(change.incident for _, change in recording.changes if change.kind is ChangeKind.CLOSED)
        assert ((closed.end_ns or 0) - BEGIN_NS) / 1e9 == pytest.approx(12, abs=0.5)
