"""The bench of labeled runs: its plan, its truth, and how it judges."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bench.agent import BenchError
from bench.incidents.__main__ import QUIET_SEEDS, SEEDS
from bench.incidents.findings import Answer, Found
from bench.incidents.judge import Verdict, judge, lines_of
from bench.incidents.log import Log
from bench.incidents.plan import all_scenarios, control_of
from bench.incidents.plan.doses import launch_us, more_ms, pcie_gbps, storm_duty
from bench.incidents.plan.kinds import KINDS
from bench.incidents.plan.programs import PROGRAMS
from bench.incidents.plan.settings import setting
from bench.incidents.recording import Label, failure_of
from bench.incidents.results import Result, Results
from bench.incidents.scenario import INJECTED, Disturbance, Expected, Place, Planned, Scenario
from bench.incidents.score import Scored, Total, table, totals
from bench.incidents.truth import Truth, truth
from ingero.demo.faults import NAMES

MS = 1_000_000
SECOND = 1_000_000_000
CONTENTION = Expected(causes=frozenset({"cpu-contention"}), culprits=(INJECTED,))
HOG = Scenario(name="hog", group="fault", disturbances=(Disturbance(kind="cpu_hog", dose=0.2),), expected=(CONTENTION,))
QUIET = Scenario(name="quiet", group="healthy")


def label(**values: object) -> Label:
    made = Label(scenario="any", seed=1, pid=7, own_pids=[7, 40], culprits=[40])
    for name, value in values.items():
        setattr(made, name, value)
    return made


def found(cause: str, **values: object) -> Found:
    return replace(
        Found(
            cause=cause,
            kind="incident",
            severity="high",
            begin_ns=0,
            end_ns=SECOND,
            lost_ns=200 * MS,
            lost_ratio=0.2,
            explained_ratio=1.0,
            summary="",
        ),
        **values,  # type: ignore[arg-type]  # of a record's fields
    )


def lost(share: float) -> Truth:
    return Truth(lost_ns=int(share * SECOND), wall_ns=SECOND, noticeable_ns=None)


def test_every_fault_of_the_demo_is_planned() -> None:
    assert set(NAMES) <= set(KINDS)
    assert set(KINDS) - {"nothing"} == {one.kind for each in all_scenarios() for one in each.disturbances}


def test_the_plan_has_the_promised_number_of_runs() -> None:
    plan = all_scenarios()
    assert SEEDS * sum(bool(one.expected) for one in plan) >= 600
    assert QUIET_SEEDS * sum(not one.expected for one in plan) >= 300


@pytest.mark.parametrize("is_quiet", [False, True])
def test_half_of_the_runs_are_of_programs_that_do_not_wait_once_a_step(is_quiet: bool) -> None:
    mine = [bool(one.program) for one in all_scenarios() if is_quiet is not bool(one.expected)]
    assert sum(mine) >= len(mine) / 2


def test_a_plan_that_takes_several_causes_says_why() -> None:
    assert [
        name
        for name, kind in KINDS.items()
        if kind.expected and len(kind.expected.causes) > 1 and not kind.expected.why
    ] == []


def test_every_expected_line_lies_in_a_function_that_exists() -> None:
    places = {kind.expected.place for kind in KINDS.values() if kind.expected and kind.expected.place}
    assert all(first < last for first, last in map(lines_of, places))


def test_the_fast_subset_has_faults_and_healthy_runs() -> None:
    fast = [one for one in all_scenarios() if one.is_fast]
    assert len(fast) == 19
    assert sum(not one.expected for one in fast) >= 4


def test_a_control_is_shared_by_all_doses_of_a_fault() -> None:
    controls = {
        control_of(one).name
        for one in all_scenarios()
        if one.name.startswith("gpu_throttle-") and one.sched == "block" and not one.arguments
    }
    assert controls == {"alone-train-block"}


def test_incidents_are_counted_by_whether_they_say_where() -> None:
    event = found("gpu-slower", kind="event", is_located=True)
    judgement = judge(HOG, label(), lost(0.2), [found("cpu-contention", is_located=True), found("gil"), event])
    assert judgement.located == (True, False)
    scored = totals([Scored(scenario=HOG, judgement=judgement, is_disturbed=False)])
    (where,) = (one for one in scored if one.promise.startswith("incidents with a Where line"))
    assert (where.figure, where.is_kept) == ("50.0% (1 of 2)", False)


def test_doses_are_shares_of_the_new_step() -> None:
    assert more_ms(0.5) == pytest.approx(6.5)
    assert pcie_gbps(0.0) == pytest.approx(12.0)
    assert launch_us(0.5) > launch_us(0.1)
    assert 0 < storm_duty(0.01) < storm_duty(0.05) < storm_duty(0.5) < 1


def test_a_dose_gets_through_what_a_program_hides() -> None:
    nosync, host_paced = PROGRAMS["nosync"], PROGRAMS["nosync-host"]
    assert more_ms(setting(nosync, "sleep_in_loop", 0.2)) == pytest.approx(nosync.slack_ms + more_ms(0.2))
    assert setting(host_paced, "sleep_in_loop", 0.2) == pytest.approx(0.2)
    assert setting(nosync, "gpu_slow", 0.2) == 0.2
    hidden = [one for one in all_scenarios() if one.hidden]
    assert all(more_ms(one.dose) < PROGRAMS[one.program].slack_ms for one in hidden if "timer" in one.name)


def test_the_drop_is_what_the_same_steps_took_longer_than_in_the_control() -> None:
    control = label(steps_ns=[n * 10 * MS for n in range(200)])
    slow = [n * 10 * MS for n in range(50)] + [490 * MS + n * 20 * MS for n in range(1, 51)]
    run = label(steps_ns=slow, spells=[(490 * MS, 1490 * MS)], end_ns=2 * SECOND)
    measured = truth(run, control)
    assert measured is not None
    assert measured.dose == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("first_step", [0, 20])
def test_a_machine_that_was_slower_all_the_time_has_lost_nothing(first_step: int) -> None:
    lengths = [(7 + n % 3) * MS for n in range(400)]
    control = label(steps_ns=[sum(lengths[:n]) for n in range(400)])
    slower = [1.06 * one for one in lengths[first_step:]]
    steps = [round(sum(slower[:n])) for n in range(len(slower))]
    run = label(steps_ns=steps, spells=[(steps[150], steps[300])], end_ns=steps[-1], first_step=first_step)
    measured = truth(run, control)
    assert measured is not None
    assert measured.dose == pytest.approx(0.0, abs=0.002)


def test_a_loop_that_waits_for_every_eighth_step_is_as_fast_as_that_step_says() -> None:
    """What the others take is how long enqueuing takes, of which nothing is waited for."""

    def ended(enqueuing: int) -> list[int]:
        return [n // 8 * 56 * MS + n % 8 * enqueuing for n in range(400)]

    run = label(steps_ns=ended(MS), spells=[(1000 * MS, 2000 * MS)], end_ns=ended(MS)[-1])
    measured = truth(run, label(steps_ns=ended(MS * 9 // 10)))
    assert measured is not None
    assert measured.dose == pytest.approx(0.0, abs=0.01)


def test_a_run_that_never_comes_back_has_lost_all_that_was_left() -> None:
    control = label(steps_ns=[n * 10 * MS for n in range(200)])
    run = label(steps_ns=[n * 10 * MS for n in range(50)], spells=[(500 * MS, 1500 * MS)], end_ns=1500 * MS)
    measured = truth(run, control)
    assert measured is not None
    assert measured.dose == pytest.approx(1.0)


def test_a_right_cause_with_the_injected_culprit_is_right() -> None:
    judgement = judge(HOG, label(), lost(0.2), [found("cpu-contention", culprits=[(40, "hog")])])
    assert judgement.is_right
    assert judgement.parts[0].verdict is Verdict.RIGHT
    assert judgement.parts[0].culprit_right
    assert judgement.parts[0].loss_error == pytest.approx(0.0)


def test_another_process_at_the_head_of_the_culprits_is_wrong() -> None:
    judgement = judge(HOG, label(), lost(0.2), [found("cpu-contention", culprits=[(41, "other")])])
    assert judgement.parts[0].culprit_right is False


def test_another_cause_is_wrong_at_any_dose() -> None:
    judgement = judge(HOG, label(), lost(0.01), [found("gpu-slower")])
    assert judgement.parts[0].verdict is Verdict.WRONG
    assert judgement.wrong == ("gpu-slower",)


@pytest.mark.parametrize(("share", "verdict"), [(0.01, Verdict.QUIET), (0.04, Verdict.QUIET), (0.2, Verdict.ABSTAINED)])
def test_silence_is_right_below_five_percent(share: float, verdict: Verdict) -> None:
    assert judge(HOG, label(), lost(share), []).parts[0].verdict is verdict


def test_a_true_cause_of_a_drop_below_three_percent_is_neither_right_nor_wrong() -> None:
    judgement = judge(HOG, label(), lost(0.02), [found("cpu-contention", culprits=[(40, "hog")])])
    assert judgement.parts[0].verdict is Verdict.EARLY
    assert judgement.wrong == ()


def test_unexplained_is_no_wrong_cause() -> None:
    judgement = judge(HOG, label(), lost(0.2), [found("unexplained")])
    assert judgement.parts[0].verdict is Verdict.ABSTAINED
    assert judgement.wrong == ()


def test_what_the_plan_takes_for_hidden_is_true_only_if_it_cost_something() -> None:
    hidden = replace(HOG, expected=(), hidden=(CONTENTION,))
    named = [found("cpu-contention", culprits=[(40, "hog")])]
    assert not judge(hidden, label(), lost(0.01), named).is_right
    assert not judge(hidden, label(), None, named).is_right
    assert judge(hidden, label(), lost(0.05), named).is_right
    assert judge(hidden, label(), lost(0.01), []).is_right


def test_a_bottleneck_of_the_program_itself_is_true_and_no_incident_of_the_fault() -> None:
    slow = replace(HOG, own=frozenset({"host-bound"}))
    both = [found("cpu-contention", culprits=[(40, "hog")]), found("host-bound", kind="bottleneck")]
    assert judge(slow, label(), lost(0.2), both).incidents == 1
    assert judge(slow, label(), lost(0.2), both).is_right
    assert not judge(HOG, label(), lost(0.2), both).is_right


def test_an_event_is_expected_without_drop() -> None:
    expected = Expected(causes=frozenset({"cgroup-oom"}), is_event=True)
    judgement = judge(replace(HOG, expected=(expected,)), label(), lost(0.0), [])
    assert judgement.parts[0].verdict is Verdict.ABSTAINED


def test_the_right_cause_with_other_facts_is_wrong() -> None:
    expected = Expected(causes=frozenset({"data-starvation"}), facts={"worker was": "asleep"})
    scenario = replace(HOG, expected=(expected,))
    other = found("data-starvation", evidence={"worker was": "disk"})
    assert judge(scenario, label(), lost(0.2), [other]).parts[0].verdict is Verdict.WRONG


def test_anything_found_in_a_healthy_run_is_wrong() -> None:
    assert judge(QUIET, label(), None, []).is_right
    assert not judge(QUIET, label(), None, [found("unexplained")]).is_right
    assert not judge(QUIET, label(), None, [found("gil")]).is_right


def test_what_a_hypervisor_took_is_true_as_far_as_it_took_so_much() -> None:
    stolen = found("cpu-steal", lost_ns=200 * MS, lost_ratio=0.2)  # in one of many seconds
    assert judge(QUIET, label(stolen_s=0.25), None, [stolen]).is_right
    assert not judge(QUIET, label(stolen_s=0.15), None, [stolen]).is_right


def test_what_others_did_to_a_disturbed_run_is_not_held_against_it() -> None:
    by_others = found("cpu-contention", culprits=[(999, "make")])
    assert judge(QUIET, label(others=0.5), None, [by_others]).is_right
    assert not judge(QUIET, label(others=0.0), None, [by_others]).is_right


def test_what_strangers_and_the_injected_did_together_is_about_the_run() -> None:
    together = found("cpu-contention", culprits=[(999, "make"), (40, "hog")])
    assert judge(HOG, label(others=0.5), lost(0.2), [together]).parts[0].verdict is Verdict.RIGHT


def test_a_line_must_lie_in_its_function() -> None:
    place = Place(file="callbacks.py", function="stall")
    first, _ = lines_of(place)
    scenario = replace(HOG, expected=(replace(CONTENTION, place=place),))
    here = found("cpu-contention", file="/x/callbacks.py", function="stall", line=first + 1)
    qualified = replace(here, function="Callbacks.stall")
    there = replace(here, line=first + 500)
    assert judge(scenario, label(), lost(0.2), [here]).parts[0].line_right
    assert judge(scenario, label(), lost(0.2), [qualified]).parts[0].line_right
    assert judge(scenario, label(), lost(0.2), [there]).parts[0].line_right is False


def test_results_are_found_again_and_an_undisturbed_one_replaces_a_disturbed_one(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    answer = Answer(found=[found("gil", culprits=[(1, "a")])], not_evaluated=[], took_s=0.1)
    first = Result(key="a.s1", is_disturbed=True, others=0.5, answer=answer)
    Results(path).add(first)
    assert Results(path).by_key == {"a.s1": first}
    again = replace(first, is_disturbed=False)
    Results(path).add(again)
    assert Results(path).by_key == {"a.s1": again}


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"key": "a.s1", "is_dist')
    assert Results(path).by_key == {}


def scored(scenario: Scenario, *causes: str) -> Scored:
    seen = [found(cause, culprits=[(40, "hog")]) for cause in causes]
    return Scored(scenario=scenario, judgement=judge(scenario, label(), lost(0.2), seen), is_disturbed=False)


def kept(runs: list[Scored]) -> dict[str, Total]:
    return {one.promise.split(" (")[0]: one for one in totals(runs)}


def test_a_log_holds_what_was_judged_without_the_recordings(tmp_path: Path) -> None:
    run, other = Planned(scenario=HOG, seed=2), Planned(scenario=HOG, seed=3)
    judged = judge(HOG, label(), lost(0.2), [found("cpu-contention", culprits=[(40, "hog")]), found("block-io")])
    Log(tmp_path / "log").add(run, judged, "cpu-contention 20%")
    again = Log(tmp_path / "log")
    assert run in again
    assert other not in again
    assert list(again.scored({"hog": HOG})) == [Scored(scenario=HOG, judgement=judged, is_disturbed=False)]
    assert list(again.scored({})) == [], "planned no more"


def test_a_log_can_be_scored_from_a_commit_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    Log(path).add(Planned(scenario=HOG, seed=1), judge(HOG, label(), lost(0.2), []), "silence")
    older = path.read_text().replace("hog.s1", "hog.s2")
    older = older.replace(json.loads(older)["revision"], "0000000")
    path.write_text(path.read_text() + older)
    assert len(list(Log(path).scored({"hog": HOG}))) == 2
    assert len(list(Log(path).scored({"hog": HOG}, since="HEAD"))) == 1
    with pytest.raises(BenchError, match="no commit 0000000"):
        list(Log(path).scored({"hog": HOG}, since="0000000"))


def test_the_totals_say_which_promise_is_broken() -> None:
    good = kept([scored(HOG, "cpu-contention"), scored(QUIET)])
    assert good["cause right"].is_kept
    assert good["findings in quiet runs"].is_kept
    bad = kept([scored(HOG), scored(HOG, "gil"), scored(QUIET, "unexplained")])
    assert bad["cause right"].is_kept is False
    assert bad["findings in quiet runs"].figure == "1"
    assert bad["runs with a wrong cause"].is_kept is False


def test_what_was_told_while_a_quiet_run_went_on_counts_though_the_report_is_silent(tmp_path: Path) -> None:
    told = label(live=[(1, "nccl-straggler"), (2, "nccl-straggler")])
    judged = judge(QUIET, told, None, [])
    assert judged.is_right
    Log(tmp_path / "log").add(Planned(scenario=QUIET, seed=1), judged, "silence")
    again = list(Log(tmp_path / "log").scored({"quiet": QUIET}))
    assert kept(again)["told in quiet runs while they ran"].figure == "1 in 1 runs"
    assert judge(QUIET, label(live=[(1, "cpu-steal")], stolen_s=0.5), None, []).live_false == ()
    assert judge(QUIET, label(live=[(1, "cpu-contention")], others=0.5), None, []).live_false == ()
    assert judge(HOG, told, None, []).live_false is None


def test_a_wrong_cause_told_while_a_fault_went_on_counts_though_the_report_is_right(tmp_path: Path) -> None:
    told = label(live=[(1, "gil"), (2, "unexplained"), (3, "cpu-contention")])
    judged = judge(HOG, told, None, [])
    assert judged.live_wrong == ("gil",)
    Log(tmp_path / "log").add(Planned(scenario=HOG, seed=1), judged, "silence")
    again = list(Log(tmp_path / "log").scored({"hog": HOG}))
    assert kept(again)["faults with a wrong cause told while they ran"].figure == "1 in 1 runs"
    assert judge(QUIET, told, None, []).live_wrong is None


def test_a_drop_below_five_percent_is_not_too_late_for_being_told_at_all() -> None:
    told = replace(judge(HOG, label(), lost(0.2), [found("cpu-contention", culprits=[(40, "hog")])]), dose=0.06)
    late = replace(told, parts=tuple(replace(part, delay_s=4.0) for part in told.parts))
    runs = [Scored(scenario=HOG, judgement=one, is_disturbed=False) for one in (late, replace(late, dose=0.046))]
    assert [kept([run])["live delay of losses >= 5%, s"].is_kept for run in runs] == [False, None]


def test_the_table_has_a_row_for_each_cause() -> None:
    rows = table([scored(HOG, "cpu-contention"), scored(HOG)])
    assert rows[1][:4] == ("cpu-contention", "1", "0", "1")


def test_a_recording_has_a_folder_of_its_own() -> None:
    assert Planned(scenario=HOG, seed=2).folder(Path("kept")) == Path("kept/hog.s2")


@pytest.mark.parametrize(
    ("command", "said"),
    [("sleep 9", ""), ("exit 0", ""), ("kill -9 $$", ""), ("exit 3", "ended with status 3")],
)
def test_a_workload_that_failed_is_known(command: str, said: str) -> None:
    process = subprocess.Popen(["/bin/sh", "-c", command])
    try:
        if not command.startswith("sleep"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert failure_of(process.pid) == said
    finally:
        process.kill()
        process.wait()
