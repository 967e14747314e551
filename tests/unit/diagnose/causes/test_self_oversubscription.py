"""self-oversubscription: the job's own workers had the CPU, beyond what sharing with others explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import AGENT_PID, Actor, ScriptedRun, Step
from ingero.diagnose.findings import FindingKind
from ingero.units import format_ns
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file
from tests.unit.diagnose.causes.ranks import diagnosed_ranks

LATE_MS = 2.0


def late(run: ScriptedRun, trainer: Actor, cpu_users: dict[tuple[int, str], float], *, ms: float = LATE_MS) -> None:
    """Picked up late by `ms` each step; who ran meanwhile, by share."""
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + ms, sync={"runq": ms}))
    for (pid, name), share in cpu_users.items():
        for second in range(int(QUIET_S), int(LENGTH_S)):
            lost_ms = ms * sum(int(end) == second for _, _, end in steps)
            run.culprit(trainer, pid, name, second, lost_ms * share)


def crowded_beside(
    run: ScriptedRun,
    trainer: Actor,
    other: tuple[int, str],
    *,
    took: float,
    runs_ms: tuple[float, float] = (400, 400),
    busy: tuple[tuple[float, ...], tuple[float, ...]],
) -> None:
    """Late behind its worker, and for the share `took` behind another; how long the worker runs in each second, and how
    busy the CPUs are, before and then.
    """
    worker = run.process(101, "pt_data_worker", parent=trainer)
    late(run, trainer, {(worker.pid, worker.name): 1 - took, other: took})
    for second in range(int(LENGTH_S)):
        run.second(worker, second, run=runs_ms[second >= QUIET_S])
    run.cpus(0, int(QUIET_S), busy[0])
    run.cpus(int(QUIET_S), int(LENGTH_S), busy[1])


def waited_for_and_contention(run: ScriptedRun, trainer: Actor) -> tuple[Actor, list[tuple[float, float, float]]]:
    """A worker that the trainer awaits 4 ms a step and that then has its CPU for 1 ms; the steps from QUIET_S on."""
    worker = run.process(101, "pt_data_worker", parent=trainer)
    step = Step(idle_ms=4.5, idle={"sleep": 4.0}, return_delay_ms=1.05, sync={"runq": 1.0})
    steps = run.train(trainer, QUIET_S, LENGTH_S, step)
    for begin, _, _ in steps:
        run.off_cpu(trainer, begin, begin + 0.004, "sleep", waker=worker)
    return worker, steps


def test_its_own_workers_are_named(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        late(run, trainer, {(worker.pid, worker.name): 0.9, (900, "cron"): 0.1})

    diagnosis = diagnosed(tmp_path, crowd)
    assert causes(diagnosis) == ["self-oversubscription"]
    assert diagnosis.incidents[0].culprits[0].pid == 101


@pytest.mark.parametrize(("ms", "found"), [(0.27, []), (0.5, ["self-oversubscription"])])
def test_what_two_healthy_minutes_differ_by_is_silent(tmp_path: Path, ms: float, found: list[str]) -> None:
    """4 and 7% of the time."""

    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        late(run, trainer, {(trainer.pid, trainer.name): 1.0}, ms=ms)

    assert causes(diagnosed(tmp_path, crowd)) == found


def test_of_its_own_threads_the_one_is_named_that_ran_while_its_path_waited(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        late(run, trainer, {(trainer.pid, trainer.name): 1.0})
        for at, behind, tid in ((0.1, "OMP", trainer.pid), (0.2, "loader", trainer.pid), (0.3, "python", 105)):
            length_s = {"OMP": 0.02, "loader": 0.01, "python": 0.05}[behind]
            begin_s = QUIET_S + at
            run.off_cpu(trainer, begin_s, begin_s + length_s, "runq", culprit=(trainer.pid, behind), tid=tid)

    (incident,) = diagnosed(tmp_path, crowd).incidents
    assert [(one.pid, one.name) for one in incident.culprits] == [(100, "OMP")]
    assert "OMP (100)" in incident.summary


def test_a_hundred_workers_are_all_its_own(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        workers = [run.process(101 + one, "pt_data_worker", parent=trainer) for one in range(100)]
        late(run, trainer, {(worker.pid, worker.name): 0.01 for worker in workers})

    assert causes(diagnosed(tmp_path, crowd)) == ["self-oversubscription"]


def test_its_workers_do_not_answer_for_what_a_hog_started(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        late(run, trainer, {(worker.pid, worker.name): 0.3, (900, "hog"): 0.7})

    assert causes(diagnosed(tmp_path, crowd)) == ["cpu-contention"]


def test_where_others_came_to_use_the_other_cpus_these_are_named(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        """The worker computes as before; a build fills the CPU on which it ran."""
        crowded_beside(run, trainer, (900, "build"), took=0.1, busy=((0.5, 0.4), (1.0, 1.0)))

    incident = diagnosed(tmp_path, crowd).incidents[0]
    assert (incident.cause, [one.pid for one in incident.culprits]) == ("cpu-contention", [900])


@pytest.mark.parametrize(("busy", "cause"), [((0.75, 0.58), "unexplained"), ((1.0, 0.6), "cpu-contention")])
def test_who_came_to_use_little_more_than_the_job_itself_did_not_crowd_it(
    tmp_path: Path, busy: tuple[float, ...], cause: str
) -> None:
    """The worker runs on 0.2 CPUs more, others on 0.23 or 0.5 more."""

    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        crowded_beside(run, trainer, (900, "build"), took=0.06, runs_ms=(400, 600), busy=((0.5, 0.4), busy))

    assert causes(diagnosed(tmp_path, crowd)) == [cause]


@pytest.mark.parametrize(("others", "cause"), [(0.3, "unexplained"), (0.6, "cpu-contention")])
def test_others_crowd_a_job_only_where_they_use_much_more_than_it_waits_for(
    tmp_path: Path, others: float, cause: str
) -> None:
    """Its threads wait for 0.2 CPUs, and its worker runs as ever."""

    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        crowded_beside(run, trainer, (900, "kworker"), took=0.06, busy=((0.4, 0.2), (0.4, 0.2 + others)))

    assert causes(diagnosed(tmp_path, crowd)) == [cause]


def test_the_recorder_answers_for_no_more_than_it_took(tmp_path: Path) -> None:
    """Its worker took the rest: neither is most."""

    def watched(run: ScriptedRun, trainer: Actor) -> None:
        busy = (0.5, 0.4), (0.8, 0.6)
        crowded_beside(run, trainer, (AGENT_PID, "ingero"), took=0.55, runs_ms=(400, 900), busy=busy)

    found = {one.cause: one.lost_ns for one in diagnosed(tmp_path, watched).incidents}
    assert set(found) == {"cpu-contention", "self-oversubscription"}
    assert found["cpu-contention"] / sum(found.values()) == pytest.approx(0.55, abs=0.01)


@pytest.mark.parametrize(("policy", "cause"), [("other", "cpu-contention"), ("idle", "unexplained")])
def test_who_runs_only_where_nobody_else_wants_to_crowds_nobody(tmp_path: Path, policy: str, cause: str) -> None:
    """Who fills what is idle uses more when the job does less, for whatever reason."""

    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        crowded_beside(run, trainer, (900, "folding"), took=0.1, busy=((0.5, 0.4), (1.0, 1.0)))
        run.scheduling(trainer.pid, process=trainer.number)
        run.scheduling(900, policy=policy)

    assert causes(diagnosed(tmp_path, crowd)) == [cause]


def test_a_build_beside_who_fills_idle_cpus_is_not_held_against_the_job(tmp_path: Path) -> None:
    """From the first second on: how much of the CPUs the build has, and how much the other, nobody knows."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        worker = run.process(101, "pt_data_worker", parent=trainer)
        steps = run.train(trainer, 0, LENGTH_S, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
        for second in range(int(LENGTH_S)):
            waited_ms = LATE_MS * sum(int(end) == second for _, _, end in steps)
            run.second(worker, second, run=400, runq=100)
            run.culprit(trainer, worker.pid, worker.name, second, 0.85 * waited_ms)
            run.culprit(trainer, 900, "build", second, 0.1 * waited_ms)
            run.culprit(trainer, 901, "folding", second, 0.05 * waited_ms)
        run.scheduling(trainer.pid, process=trainer.number)
        run.scheduling(900)
        run.scheduling(901, policy="idle")
        run.cpus(0, int(LENGTH_S), (0.4, 0.9, 0.0, 0.0))
    assert causes(diagnosed_file(path)) == ["unexplained"]


@pytest.mark.parametrize(
    ("runs_ms", "waits_ms", "busy", "cause"),
    [
        (400, 100, (0.4, 0.9, 0.0, 0.0), "cpu-contention"),
        (400, 100, (0.4, 0.1, 0.0, 0.0), "self-oversubscription"),
        (3200, 2000, (1.0, 1.0, 1.0, 1.0), "self-oversubscription"),
    ],
)
def test_threads_of_a_job_that_would_fit_without_the_others_do_not_crowd_each_other(
    tmp_path: Path, runs_ms: float, waits_ms: float, busy: tuple[float, ...], cause: str
) -> None:
    """From the first second on: a build on one of four CPUs, next to none, or one beside threads that fill them all."""
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        worker = run.process(101, "pt_data_worker", parent=trainer)
        steps = run.train(trainer, 0, LENGTH_S, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
        for second in range(int(LENGTH_S)):
            waited_ms = LATE_MS * sum(int(end) == second for _, _, end in steps)
            run.second(worker, second, run=runs_ms, runq=waits_ms)
            run.culprit(trainer, worker.pid, worker.name, second, 0.9 * waited_ms)
            run.culprit(trainer, 900, "build", second, 0.1 * waited_ms)
        run.cpus(0, int(LENGTH_S), busy)
    (incident,) = diagnosed_file(path).incidents
    assert (incident.kind, incident.cause) == (FindingKind.BOTTLENECK, cause)


def test_where_nobody_came_to_use_the_cpus_more_nobody_is_named(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        late(run, trainer, {(worker.pid, worker.name): 1.0})
        for second in range(int(LENGTH_S)):
            run.second(worker, second, run=400)
        run.cpus(0, int(LENGTH_S), (0.5, 0.4))

    assert causes(diagnosed(tmp_path, crowd)) == ["unexplained"]


def test_a_little_more_behind_its_own_threads_is_how_healthy_minutes_differ(tmp_path: Path) -> None:
    """0.5 ms a step, a tenth of the wall time at most, and neither job nor others use the CPUs more than before."""

    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        late(run, trainer, {(worker.pid, worker.name): 1.0}, ms=0.5)
        for second in range(int(LENGTH_S)):
            run.second(worker, second, run=400)
        run.cpus(0, int(LENGTH_S), (0.5, 0.4))

    assert causes(diagnosed(tmp_path, crowd)) == []


def test_workers_that_are_started_anew_did_not_all_run_at_once(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        """From QUIET_S on a new worker each second, as busy as the one before; a build fills the CPU it ran on."""
        first = run.process(101, "pt_data_worker", parent=trainer)
        for second in range(int(QUIET_S)):
            run.second(first, second, run=400)
        later = [run.process(102 + one, "pt_data_worker", parent=trainer, start_s=QUIET_S + one) for one in range(6)]
        for number, worker in enumerate(later):
            run.second(worker, QUIET_S + number, run=400)
        late(run, trainer, {(one.pid, one.name): 0.15 for one in later} | {(900, "build"): 0.1})
        run.cpus(0, int(QUIET_S), (0.5, 0.4))
        run.cpus(int(QUIET_S), int(LENGTH_S), (1.0, 1.0))

    incident = diagnosed(tmp_path, crowd).incidents[0]
    assert (incident.cause, [one.pid for one in incident.culprits]) == ("cpu-contention", [900])


def test_ranks_of_one_job_that_crowd_each_other_are_not_to_be_reniced(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, first: Actor, other: Actor) -> None:
        for affected, cpu_user in ((first, other), (other, first)):
            run.train(affected, 0, QUIET_S, Step())
            late(run, affected, {(cpu_user.pid, cpu_user.name): 1.0})

    diagnosis = diagnosed_ranks(tmp_path, crowd)
    assert causes(diagnosis) == ["self-oversubscription"]
    assert not [one for one in diagnosis.incidents[0].fixes if "nice" in one.command]


def test_ranks_of_another_job_are_others(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, first: Actor, other: Actor) -> None:
        for affected, cpu_user in ((first, other), (other, first)):
            run.train(affected, 0, QUIET_S, Step())
            late(run, affected, {(cpu_user.pid, cpu_user.name): 1.0})

    assert set(causes(diagnosed_ranks(tmp_path, crowd, comm_id_hash=(77, 78)))) == {"cpu-contention"}


@pytest.mark.parametrize(("workers", "command"), [(0, None), (2, "DataLoader(num_workers=1)")])
def test_fewer_workers_are_fewer_than_it_has(tmp_path: Path, workers: int, command: str | None) -> None:
    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        for number in range(workers):
            run.process(101 + number, "pt_data_worker", parent=trainer)
        late(run, trainer, {(trainer.pid, trainer.name): 1.0})

    (incident,) = diagnosed(tmp_path, crowd).incidents
    assert incident.cause == "self-oversubscription"
    assert next((one.command for one in incident.fixes if "num_workers" in one.command), None) == command


def test_contention_for_more_work_is_part_of_that_work(tmp_path: Path) -> None:
    def busy(run: ScriptedRun, trainer: Actor) -> None:
        """The worker computes longer for each item, and keeps the trainer from the CPU for that, too."""
        worker, steps = waited_for_and_contention(run, trainer)
        for second in range(int(LENGTH_S)):
            run.second(worker, second, run=900 if second >= QUIET_S else 100)
            run.culprit(trainer, worker.pid, worker.name, second, sum(int(end) == second for _, _, end in steps))
        run.cpus(0, int(QUIET_S), (0.5, 0.4))
        run.cpus(int(QUIET_S), int(LENGTH_S), (0.9, 0.5))

    diagnosis = diagnosed(tmp_path, busy)
    assert causes(diagnosis) == ["data-starvation"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ns > 1.1 * incident.evidence["worker on-cpu (ns)"]
    assert "while its own threads waited for a CPU" in incident.summary
    assert format_ns(incident.lost_ns) in incident.summary


def test_the_recorder_is_no_reason_for_threads_to_crowd_each_other(tmp_path: Path) -> None:
    def watched(run: ScriptedRun, trainer: Actor) -> None:
        """The worker computes for longer and crowds the trainer; the recorder, which looks at that, works more, too."""
        worker, steps = waited_for_and_contention(run, trainer)
        for second in range(int(LENGTH_S)):
            late_ms = sum(int(end) == second for _, _, end in steps)
            run.second(worker, second, run=400 if second >= QUIET_S else 100)
            run.culprit(trainer, worker.pid, worker.name, second, 0.9 * late_ms)
            run.culprit(trainer, AGENT_PID, "ingero", second, 0.1 * late_ms)
        run.cpus(0, int(QUIET_S), (0.15, 0.0))
        run.cpus(int(QUIET_S), int(LENGTH_S), (0.5, 0.35))
        run.agent(0, int(QUIET_S), 50)
        run.agent(int(QUIET_S), int(LENGTH_S), 450)

    (incident,) = diagnosed(tmp_path, watched).incidents
    assert incident.cause == "data-starvation"
    assert [one.pid for one in incident.culprits] == [101]
    assert incident.evidence["of it self-oversubscription (ns)"] == pytest.approx(0.9 * 6e9 / 11.55, rel=0.1)


def test_without_culprits_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"culprits": "--scheduler=false"})
    assert "self-oversubscription" in {one.cause for one in diagnosis.not_evaluated}


def test_who_ran_in_an_incident_is_not_held_against_the_time_around_it(tmp_path: Path) -> None:
    """A bottleneck lasts from the first step to the last; what hogs took in between belongs to the incident alone."""
    path = tmp_path / "scene.db"
    crowded, hogged = (Step(return_delay_ms=0.05 + ms, sync={"runq": ms}) for ms in (LATE_MS, 10 * LATE_MS))
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        worker = run.process(101, "pt_data_worker", parent=trainer)
        for second in range(int(LENGTH_S)):
            is_hogged = 4 <= second < 9
            steps = run.train(trainer, second, second + 1, hogged if is_hogged else crowded)
            run.culprit(trainer, worker.pid, worker.name, second, LATE_MS * len(steps))
            if is_hogged:
                run.culprit(trainer, 900, "stress-ng", second, 9 * LATE_MS * len(steps))
    found = {one.kind: one for one in diagnosed_file(path).incidents}
    assert [one.name for one in found[FindingKind.INCIDENT].culprits] == ["stress-ng"]
    assert found[FindingKind.BOTTLENECK].cause == "self-oversubscription"
    assert [one.name for one in found[FindingKind.BOTTLENECK].culprits] == ["pt_data_worker"]
