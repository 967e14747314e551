"""What a look at a recording that goes on reads, keeps and explains anew."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ingero.demo.scene import BEGIN_NS, Actor, ScriptedRun, Step
from ingero.diagnose import live as live_module
from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.case_search import CaseSearch, find_cases
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.diagnosis import diagnose, diagnose_evidence
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Diagnosis, FindingKind
from ingero.diagnose.incidents.incident_changes import ChangeKind
from ingero.diagnose.live import LiveDiagnosis
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.offcpu.path_windows import PathWindows
from ingero.store.reader import open_reader
from ingero.store.records import Window
from tests.unit.live_recording import HEALTHY, HOGGED, QUICK, QUICK_HOGGED, SECOND_NS, WAITING, live, stress


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Evidence]:
    """The evidence of each look."""
    found: list[Evidence] = []

    def looking(evidence: Evidence, rules: Iterable[Rule], cases: Sequence[Case]) -> Diagnosis:
        found.append(evidence)
        return diagnose_evidence(evidence, rules, cases)

    monkeypatch.setattr(live_module, "diagnose_evidence", looking)
    return found


def test_processes_that_ended_before_the_window_are_read_only_when_something_names_them(
    tmp_path: Path, looked_at: list[Evidence]
) -> None:
    with live(tmp_path) as recording:
        recording.seconds(2)
        ended = recording.passing(20)
        recording.seconds(2)
        assert set(ended) <= set(looked_at[-1].processes)
        recording.pause(62)
        recording.seconds(1)
        assert not set(ended) & set(looked_at[-1].processes)
        assert looked_at[-1].processes[ended[0]].pid == 5000


def test_a_process_that_lives_on_after_too_few_steps_for_a_reference_is_let_go_and_taken_up_again(
    tmp_path: Path,
) -> None:
    with live(tmp_path) as recording:
        recording.seconds(1, busy_s=0.02)
        recording.pause(90)
        recording.seconds(30)
        recording.seconds(10, HOGGED, hog=stress)
    assert [kind for kind, _ in recording.reported()][:1] == ["opened"]


def test_what_a_look_has_read_goes_with_it_and_does_not_wait_for_the_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[weakref.ref[Evidence]] = []

    def kept_weakly(evidence: Evidence, rules: Iterable[Rule], cases: Sequence[Case]) -> Diagnosis:
        looked_at.append(weakref.ref(evidence))
        return diagnose_evidence(evidence, rules, cases)

    monkeypatch.setattr(live_module, "diagnose_evidence", kept_weakly)
    gc.disable()
    try:
        with live(tmp_path) as recording:
            recording.seconds(30)
            recording.seconds(10, HOGGED, hog=stress)
            assert recording.reported(), "an incident, whose rules have asked for everything"
            assert len(looked_at) >= 40
            assert {one() for one in looked_at} == {None}
    finally:
        gc.enable()


def test_a_process_that_was_gone_at_once_is_no_case_while_recording(tmp_path: Path) -> None:
    """One of 4 s that lost half of wall time; the diagnosis afterwards tells of it."""
    path = tmp_path / "brief.db"
    with ScriptedRun(path, seconds=60) as run:
        brief = run.process(100, "python", exit_ns=run.at(4))
        run.train(brief, 0, 2, HEALTHY)
        for _, _, end in run.train(brief, 2, 4, HOGGED):
            run.culprit(brief, 900, "stress-ng", int(end), 2.5)
        run.flush()
        with open_reader(path) as reader:
            whole = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 5 * SECOND_NS)
            found = [list(find_cases(Evidence(reader, whole, is_live=is_live))) for is_live in (False, True)]
    assert [bool(cases) for cases in found] == [True, False]


def test_of_thousands_of_sync_intervals_a_second_as_many_are_looked_at_as_there_is_memory_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: list[Evidence]
) -> None:
    monkeypatch.setattr(live_module, "_MAX_SYNC_INTERVALS", 2000)
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(40, HOGGED, hog=stress)
        (sync_intervals,) = (gpu_stream.sync_intervals for gpu_stream in looked_at[-1].read_gpu_streams())
        window = looked_at[-1].window
        assert (
            1000
            < (
                (sync_intervals["sync_end_ns"] >= window.begin_ns) & (sync_intervals["sync_end_ns"] < window.end_ns)
            ).sum()
            <= 2000
        )
        told = recording.reported()
        assert told.count(("opened", "cpu-contention")) == 1
        assert "closed" not in [kind for kind, _ in told]
        last = recording.changes[-1][1].incident
        assert last.lost_ns == pytest.approx(40 * SECOND_NS * 2.45 / 10, rel=0.25)


def test_a_look_after_a_pause_with_more_sync_intervals_than_are_looked_at_sees_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: list[Evidence]
) -> None:
    monkeypatch.setattr(live_module, "_MAX_SYNC_INTERVALS", 2000)
    with live(tmp_path) as recording:
        recording.seconds(2)
        for _ in range(3):
            recording.seconds(59, is_looked_at=False)
            recording.seconds(1)
            window = looked_at[-1].window
            assert 10 * SECOND_NS < window.duration_ns < 30 * SECOND_NS
            (sync_intervals,) = (gpu_stream.sync_intervals for gpu_stream in looked_at[-1].read_gpu_streams())
            assert len(sync_intervals) < 9000, "the newest, and a reference; 27,000 ended in all"


def test_a_bottleneck_that_stays_is_looked_at_for_a_minute_however_long_it_has_been_open(
    tmp_path: Path, looked_at: list[Evidence]
) -> None:
    with live(tmp_path) as recording:
        recording.seconds(150, WAITING)
        assert [kind for kind, _ in recording.reported()][:1] == ["opened"]
        assert "closed" not in [kind for kind, _ in recording.reported()]
        (case,) = find_cases(looked_at[-1])
    assert case.kind is FindingKind.BOTTLENECK
    assert looked_at[-1].window.duration_ns == 60 * SECOND_NS
    assert case.window.duration_ns <= 61 * SECOND_NS


@pytest.fixture
def looks_at_best(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that is looked at what is slow at best."""
    looks: list[int] = []
    bottlenecks = CaseSearch.bottlenecks

    def counted(search: CaseSearch) -> list[Case]:
        looks.append(1)
        return bottlenecks(search)

    monkeypatch.setattr(CaseSearch, "bottlenecks", counted)
    return looks


def test_what_others_take_from_the_first_second_on_is_looked_at_each_second_until_it_is_told(
    tmp_path: Path, looks_at_best: list[int]
) -> None:
    """It is told when it reaches a fifth, and 18% of the first second may be 22% of two."""
    with live(tmp_path) as recording:
        recording.seconds(50, Step(return_delay_ms=1.0, sync={"runq": 1.0, "sleep": 5.0}), hog=stress)
    assert len(looks_at_best) == 31 + 1, "told after half a minute, and every ten seconds from then on"


def test_what_is_slow_at_best_is_looked_at_now_and_then_and_goes_on_meanwhile(
    tmp_path: Path, looks_at_best: list[int]
) -> None:
    with live(tmp_path) as recording:
        recording.seconds(60, WAITING)
        assert len(looks_at_best) == 9, "after 1, 2, 4, 8, 16 seconds and then every ten"
        assert {kind for kind, _ in recording.reported()} == {"opened", "updated"}
        assert [second for second, change in recording.changes if change.kind is ChangeKind.OPENED] == [31]


def test_what_is_slow_at_best_leaves_the_time_to_what_begins_but_is_looked_at_each_minute(
    tmp_path: Path, looks_at_best: list[int]
) -> None:
    with live(tmp_path) as recording:
        recording.seconds(125, WAITING, has_time=False)
        assert len(looks_at_best) == 2, "after one minute and after two"
        assert {change.incident.kind for _, change in recording.changes} == {FindingKind.BOTTLENECK}


@pytest.mark.parametrize(("return_delay_ms", "second"), [(2.5, 2), (1.0, 31)])
def test_a_program_that_others_kept_from_running_before_the_recording_began_need_not_wait(
    tmp_path: Path, return_delay_ms: float, second: int
) -> None:
    """There is no best second to compare with; 27% of wall time are told when a second look sees them, too."""
    with live(tmp_path) as recording:
        recording.seconds(
            32, Step(return_delay_ms=return_delay_ms, sync={"runq": return_delay_ms, "sleep": 5.0}), hog=stress
        )
        (opened,) = [(at, change.incident) for at, change in recording.changes if change.kind is ChangeKind.OPENED]
    assert (opened[0], opened[1].cause, opened[1].kind) == (second, "cpu-contention", FindingKind.BOTTLENECK)


def test_what_is_slow_at_best_goes_on_beside_an_incident_and_after_it(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(33, WAITING)
        recording.seconds(6, replace(WAITING, return_delay_ms=2.5, sync={"runq": 2.5, "sleep": 5.0}), hog=stress)
        recording.seconds(22, WAITING)
        kinds = [(change.kind, change.incident.kind) for _, change in recording.changes]
    assert kinds[0] == (ChangeKind.OPENED, FindingKind.BOTTLENECK)
    assert (ChangeKind.OPENED, FindingKind.INCIDENT) in kinds
    assert (ChangeKind.CLOSED, FindingKind.INCIDENT) in kinds
    assert (ChangeKind.CLOSED, FindingKind.BOTTLENECK) not in kinds


def test_an_incident_that_goes_on_as_it_was_told_is_explained_every_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = _counting_explanations(monkeypatch)
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(20, HOGGED, hog=stress)
        assert 4 <= len(explained) <= 7, "two until it is told, then one each five seconds"
        recording.seconds(10)
        (closed,) = [change.incident for _, change in recording.changes if change.kind is ChangeKind.CLOSED]
        assert closed.lost_ns == pytest.approx(20 * SECOND_NS * 2.45 / 9, rel=0.03), "the seconds between count, too"
        assert closed.end_ns is not None
        assert (closed.end_ns - BEGIN_NS) / 1e9 == pytest.approx(28, abs=0.2)


def test_what_comes_on_top_of_an_incident_is_told_as_soon_as_by_itself(tmp_path: Path) -> None:
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(9, HOGGED, hog=stress)
        recording.seconds(3, replace(HOGGED, busy_ms=8.0), hog=stress)
        opened = {change.incident.cause: second for second, change in recording.changes}
    assert opened["gpu-slower"] <= 17 + 2


def test_a_loss_whose_cause_is_not_told_yet_is_explained_each_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = _counting_explanations(monkeypatch)
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(3, replace(HEALTHY, idle_ms=3.0, idle={"sleep": 3.0}))
        assert len(explained) >= 3


def test_what_is_unexplained_is_explained_each_second_after_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explained = _counting_explanations(monkeypatch)
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(9, HOGGED)
        assert ("opened", "unexplained") in recording.reported()
        assert len(explained) >= 8


def test_the_last_look_explains_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explained = _counting_explanations(monkeypatch)
    with live(tmp_path) as recording:
        recording.seconds(8)
        recording.seconds(12, HOGGED, hog=stress)
        before = len(explained)
        recording.seconds(1, HOGGED, hog=stress, is_last=True)
        assert len(explained) == before + 1


def _counting_explanations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An item for each time that cases are shown to the rules."""
    found: list[int] = []

    def counted(evidence: Evidence, rules: Iterable[Rule], cases: Sequence[Case] | None = None) -> Diagnosis:
        if any(one.kind is FindingKind.INCIDENT for one in cases or ()):
            found.append(1)
        return diagnose_evidence(evidence, rules, cases)

    monkeypatch.setattr(live_module, "diagnose_evidence", counted)
    return found


@pytest.mark.parametrize("is_live", [True, False])
def test_processes_that_have_come_and_gone_cost_no_question_each(tmp_path: Path, is_live: bool) -> None:
    """A launcher of short-lived processes would otherwise be asked about for longer and longer."""
    asked = [questions(tmp_path / f"{count}.db", count, is_live=is_live) for count in (10, 200)]
    assert asked[0] == asked[1] > 10


def questions(path: Path, processes: int, *, is_live: bool) -> int:
    """How often the database is asked about a second in which so many processes made their first launch and ended."""
    asked: list[str] = []
    with ScriptedRun(path, seconds=2) as run:
        for number in range(processes):
            actor = run.process(1000 + number, "short")
            run.op(actor, "cudaLaunchKernel", 0, 5, 0.1)
            run.second(actor, 0, run=5)
        run.flush()
        with open_reader(path) as reader:
            diagnosis = LiveDiagnosis(reader, begin_ns=BEGIN_NS)
            whole = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 2 * SECOND_NS)
            reader.connection.set_exec_trace(lambda *question: not asked.append(str(question)))  # type: ignore[func-returns-value]
            if is_live:
                diagnosis.look()
            else:
                diagnose(reader, whole)
    return len(asked)


def test_a_reference_in_many_short_time_ranges_is_asked_about_at_once(tmp_path: Path) -> None:
    """Short steps with other work between them are time ranges of their own; sums by second are the same for all."""
    few, many = (time_ranges_and_questions(tmp_path / f"{steps}.db", steps) for steps in (5, 25))
    assert many[0] > 2 * few[0] > 40, "else it lies in few time ranges"
    assert many[1] < 2 * few[1]


def time_ranges_and_questions(path: Path, steps: int) -> tuple[int, int]:
    """In how many time ranges a reference lies, and how many questions about sums and samples the diagnosis asks.

    steps: per second, ten seconds long; then others take the CPUs.
    """
    asked: list[str] = []
    with ScriptedRun(path, seconds=20) as run:
        trainer = run.process(100, "python")
        for second in range(20):
            for begin in (second + number / steps for number in range(steps)):
                run.train(trainer, begin, begin + 0.001, QUICK if second < 10 else QUICK_HOGGED)
            if second >= 10:
                stress(run, trainer, second)
        run.flush()
        with open_reader(path) as reader:
            evidence = Evidence(reader, Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 20 * SECOND_NS))
            time_ranges = max((len(case.baseline_windows) for case in find_cases(evidence)), default=0)
            reader.connection.set_exec_trace(lambda *question: not asked.append(str(question)))  # type: ignore[func-returns-value]
            diagnose(reader, evidence.window)
    sums = ("raw_culprits", "raw_thread_state_seconds", "raw_stack_samples", "DISTINCT start_ns")
    return time_ranges, sum(any(name in question for name in sums) for question in asked)


def test_sync_intervals_that_several_rules_ask_for_are_read_once(tmp_path: Path) -> None:
    window = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 2 * SECOND_NS)
    with ScriptedRun(tmp_path / "a.db", seconds=2) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, 2, HEALTHY)
        run.flush()
        with open_reader(tmp_path / "a.db") as reader:
            evidence = Evidence(reader, window)
            first = evidence.sync_intervals(window, trainer.number)
            assert len(first) > 200
            assert evidence.sync_intervals(Window(begin_ns=BEGIN_NS, end_ns=window.end_ns), trainer.number) is first


def serve(run: ScriptedRun, trainer: Actor, second: int) -> None:
    """Ten requests: the steps of this second each wait for one."""
    for number in range(10):
        begin = second + number / 10
        ((_, first, _),) = run.train(trainer, begin, begin + 1e-6, Step(idle_ms=80, idle={"sleep": 79}))
        run.off_cpu(trainer, begin, first - 0.001, "sleep", waker="network")


def test_pauses_without_demand_are_followed_until_nothing_can_change_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each look would follow all of its minute again."""
    followed: list[int] = []
    path = PathWindows.path

    def counted(waits: PathWindows, *where: int, outside_gpu_calls: bool) -> list[PathSegment]:
        followed.append(where[1])
        return path(waits, *where, outside_gpu_calls=outside_gpu_calls)

    monkeypatch.setattr(PathWindows, "path", counted)
    with live(tmp_path) as recording:
        recording.seconds(40, busy_s=0.0, hog=serve)
        assert recording.reported() == [], "an idle server loses nothing"
    most = max(Counter(followed).values())
    assert len(set(followed)) == 400
    assert most <= 11, "each second of its ten, and once when they are over"


def test_short_sleeps_of_a_loop_are_not_followed_while_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[int] = []
    monkeypatch.setattr(PathWindows, "path", lambda *_waits: followed.append(1) or [])

    def pause(run: ScriptedRun, trainer: Actor, second: int) -> None:
        """Three steps wait for 3 ms."""
        step = Step(idle_ms=3.5, idle={"sleep": 3.0})
        for begin, first, _ in run.train(trainer, second + 0.9, second + 0.92, step):
            run.off_cpu(trainer, begin, first, "sleep", waker="timer")

    with live(tmp_path) as recording:
        recording.seconds(20, busy_s=0.9, hog=pause)
        assert (recording.reported(), followed) == ([], [])


@pytest.mark.parametrize(
    ("still_s", "longest_s", "is_gone", "expected"),
    [(0.2, 0, False, False), (1, 0, False, True), (1, 0, True, False), (1, 1.5, False, False), (3.5, 0, False, False)],
    ids=["not yet", "stands still", "its process is gone", "it has been as long", "for long"],
)
def test_a_loop_that_stands_still_is_looked_at_sooner_for_some_seconds(
    tmp_path: Path, still_s: float, longest_s: float, is_gone: bool, expected: bool
) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=20) as run:
        trainer = run.process(100, "python", exit_ns=run.at(6.1) if is_gone else None)
        if longest_s:
            run.train(trainer, 0, longest_s, Step(idle_ms=1e3 * longest_s))
        run.train(trainer, longest_s, 6, HEALTHY)
    until_ns = BEGIN_NS + int((6 + still_s) * SECOND_NS)
    with open_reader(path) as reader:
        search = CaseSearch(Evidence(reader, Window(begin_ns=BEGIN_NS, end_ns=until_ns), is_live=True))
        assert search.has_onset() is expected
