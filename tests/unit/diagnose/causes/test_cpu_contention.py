"""cpu-contention: fires for named processes that took the CPU, is silent when nothing was lost or was not seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import AGENT_PID, BEGIN_NS, Actor, ScriptedRun, Step
from ingero.diagnose.findings import UNEXPLAINED, FindingKind
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

LATE_MS = 2.0


def hogged(run: ScriptedRun, trainer: Actor, *, cgroup_id: int = 0) -> None:
    """A hog takes the CPU at the end of each sync."""
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
    for second in range(int(QUIET_S), int(LENGTH_S)):
        lost_ms = LATE_MS * sum(int(end) == second for _, _, end in steps)
        run.culprit(trainer, 900, "hog", second, lost_ms, switches=500, cgroup_id=cgroup_id)


def test_a_hog_is_named_with_the_time_it_took(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, hogged)
    assert causes(diagnosis) == ["cpu-contention"]
    incident = diagnosis.incidents[0]
    assert [(one.pid, one.name) for one in incident.culprits] == [(900, "hog")]
    assert incident.lost_ratio == pytest.approx(LATE_MS / (6.55 + LATE_MS), rel=0.03)
    assert "hog (900)" in incident.summary


def test_a_kernel_thread_does_not_answer_for_waits_without_a_name(tmp_path: Path) -> None:
    """Seen live: 0.1 ms of a kworker, of 70 ms of waits whose culprits were not recorded yet."""

    def unnamed(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.culprit(trainer, 12, "kworker/1:1", second, 0.1)

    assert causes(diagnosed(tmp_path, unnamed)) == [UNEXPLAINED]


def test_what_a_hog_always_takes_is_not_added_to_what_it_takes_more_for_a_while(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        for begin_s, end_s, ms in ((0, QUIET_S, 1.2), (QUIET_S, LENGTH_S, 4.0)):
            steps = run.train(trainer, begin_s, end_s, Step(return_delay_ms=0.05 + ms, sync={"runq": ms}))
            for second in range(int(begin_s), int(end_s)):
                run.culprit(trainer, 900, "hog", second, ms * sum(int(end) == second for _, _, end in steps))
    (more,) = diagnosed_file(path).incidents
    assert (more.cause, more.kind) == ("cpu-contention", FindingKind.INCIDENT)
    assert more.lost_ns == pytest.approx(6e9 * 2.8 / 10.55, rel=0.05)
    assert (more.start_ns - BEGIN_NS) / 1e9 == pytest.approx(QUIET_S, abs=0.2)
    assert more.evidence["lost in the baseline to"] == "cpu-contention"
    assert more.evidence["lost in the baseline to cpu-contention (ratio)"] == pytest.approx(1.25 / 7.75, rel=0.2)
    assert "16% of wall time is lost this way even in the baseline" in more.summary


@pytest.mark.parametrize(
    ("policy", "return_delay_ms", "expected"),
    [("other", 0.3, ["cpu-contention"]), ("idle", 0.3, []), ("idle", LATE_MS, ["cpu-contention"])],
)
def test_who_only_fills_idle_cpus_is_told_from_five_percent_on(
    tmp_path: Path, policy: str, return_delay_ms: float, expected: list[str]
) -> None:
    def filled(run: ScriptedRun, trainer: Actor) -> None:
        steps = run.train(
            trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + return_delay_ms, sync={"runq": return_delay_ms})
        )
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.culprit(
                trainer, 900, "folding", second, return_delay_ms * sum(int(end) == second for _, _, end in steps)
            )
        run.scheduling(900, policy=policy)

    assert causes(diagnosed(tmp_path, filled)) == expected


def recorded_hard(run: ScriptedRun, trainer: Actor, lost_ms: float) -> None:
    """The recorder works more than before, on the trainer's CPU."""
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + lost_ms, sync={"runq": lost_ms}))
    for second in range(int(QUIET_S), int(LENGTH_S)):
        took_ms = lost_ms * sum(int(end) == second for _, _, end in steps)
        run.culprit(trainer, AGENT_PID, "ingero", second, took_ms, switches=50)


def test_what_the_recorder_takes_is_told_where_it_is_much(tmp_path: Path) -> None:
    (incident,) = diagnosed(tmp_path, lambda run, trainer: recorded_hard(run, trainer, LATE_MS)).incidents
    assert (incident.cause, incident.root) == ("cpu-contention", "ingero")
    assert [one.pid for one in incident.culprits] == [AGENT_PID]
    assert "while ingero itself ran" in incident.summary


def test_what_the_recorder_takes_is_silent_where_two_healthy_minutes_differ_by_as_much(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: recorded_hard(run, trainer, 0.28))) == []


def test_a_hog_does_not_answer_for_what_the_recorder_took(tmp_path: Path) -> None:
    def both(run: ScriptedRun, trainer: Actor) -> None:
        steps = run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
        for second in range(int(QUIET_S), int(LENGTH_S)):
            lost_ms = LATE_MS * sum(int(end) == second for _, _, end in steps)
            run.culprit(trainer, 900, "hog", second, 0.9 * lost_ms)
            run.culprit(trainer, AGENT_PID, "ingero", second, 0.1 * lost_ms)

    (incident,) = diagnosed(tmp_path, both).incidents
    assert [one.pid for one in incident.culprits] == [900]
    assert incident.lost_ratio == pytest.approx(0.9 * LATE_MS / (6.55 + LATE_MS), rel=0.03)


def test_the_breakdown_of_two_affected_is_that_of_the_worse_one(tmp_path: Path) -> None:
    def both(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer)
        other = run.process(200, "python")
        run.train(other, 0, QUIET_S, Step())
        hogged(run, other)

    (incident,) = diagnosed(tmp_path, both).incidents
    assert {one.pid for one in incident.affected} == {100, 200}
    assert sum(incident.breakdown.values()) == incident.lost_ns


def test_a_affected_lost_by_a_cause_what_that_explains(tmp_path: Path) -> None:
    (incident,) = diagnosed(tmp_path, hogged).incidents
    assert [one.lost_ns for one in incident.affected] == [incident.lost_ns]


def test_who_has_the_lowest_nice_value_already_is_not_to_be_reniced(tmp_path: Path) -> None:
    def of_low_weight(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer)
        run.scheduling(900, nice=19)

    (incident,) = diagnosed(tmp_path, of_low_weight).incidents
    assert incident.fixes[0].command == "sudo chrt --idle -a -p 0 900"


def test_only_who_took_much_is_to_be_reniced(tmp_path: Path) -> None:
    def beside_a_daemon(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer)
        for second in range(int(QUIET_S), int(LENGTH_S)):
            run.culprit(trainer, 1, "systemd", second, 0.5)

    (incident,) = diagnosed(tmp_path, beside_a_daemon).incidents
    assert incident.fixes[0].command == "sudo renice -n 19 -p $(ls /proc/900/task)"


@pytest.mark.parametrize(
    ("cpu_user_path", "command"),
    [
        ("/jobs/1", "sudo renice -n 19 -p $(ls /proc/900/task)"),
        (
            "/",
            "sudo renice -n 19 -p $(ls /proc/900/task)",
        ),  # weighed against the group in which the affected process is
        ("/jobs/2", "echo 1 | sudo tee /sys/fs/cgroup/jobs/2/cpu.weight  # v1: 2 to cpu.shares"),
        ("/build/2", "echo '<us> 100000' | sudo tee /sys/fs/cgroup/build/2/cpu.max  # v1: cpu.cfs_quota_us"),
    ],
)
def test_a_nice_value_is_offered_only_where_it_counts(tmp_path: Path, cpu_user_path: str, command: str) -> None:
    def grouped(run: ScriptedRun, trainer: Actor) -> None:
        for group, path in ((1, "/jobs/1"), (2, cpu_user_path)):
            run.append(tables.CGROUPS, cgroup_id=group, kernel_cgroup_id=group, node="n", cgroup_path=path)
        hogged(run, trainer, cgroup_id=2)

    (incident,) = diagnosed(tmp_path, grouped, cgroup_id=1).incidents
    assert incident.fixes[0].command == command
    assert ("renice" in command) is any("renice" in one.command for one in incident.fixes)


def test_many_cpu_users_of_one_name_are_named_together(tmp_path: Path) -> None:
    def crowd(run: ScriptedRun, trainer: Actor) -> None:
        steps = run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
        for second in range(int(QUIET_S), int(LENGTH_S)):
            lost_ms = LATE_MS * sum(int(end) == second for _, _, end in steps)
            for number in range(40):
                run.culprit(trainer, 900 + number, "hog", second, lost_ms / 41)
            run.culprit(trainer, 990, "cron", second, lost_ms / 41)

    (incident,) = diagnosed(tmp_path, crowd).incidents
    assert incident.cause == "cpu-contention"
    assert {one.name for one in incident.culprits} == {"hog"}
    assert "and 36 more) ran" in incident.summary


@pytest.mark.parametrize(
    "step",
    [
        Step(idle_ms=4.5, idle={"sleep": 4.0}),
        Step(launch_ms=9.9, busy_ms=10.0, launch={"sleep": 8.9}),  # between the launches of several batches
    ],
    ids=["idle", "launch"],
)
def test_a_hog_answers_for_the_wait_for_a_worker_that_it_kept_from_running(tmp_path: Path, step: Step) -> None:
    def hogged(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        steps = run.train(trainer, QUIET_S, LENGTH_S, step)
        for begin, first, end in steps:
            wait_s = first if step.launch else begin
            until_s = wait_s + max(step.launch.get("sleep", 0), step.idle.get("sleep", 0)) / 1e3
            run.off_cpu(trainer, wait_s, until_s, "sleep", waker=worker)
            run.off_cpu(worker, wait_s, until_s - 0.0001, "runq", culprit=(900, "hog"))
            run.culprit(worker, 900, "hog", int(end), 1e3 * (until_s - wait_s))

    (incident,) = diagnosed(tmp_path, hogged).incidents
    assert (incident.cause, [one.name for one in incident.culprits]) == ("cpu-contention", ["hog"])
    assert incident.explained_ratio > 0.9


def test_runnable_time_that_costs_nothing_is_silent(tmp_path: Path) -> None:
    def hidden(run: ScriptedRun, trainer: Actor) -> None:
        """The same waiting, but within the wait for the GPU."""
        run.train(trainer, QUIET_S, LENGTH_S, Step(sync={"runq": LATE_MS}))
        run.culprit(trainer, 900, "hog", QUIET_S, 1000)

    assert causes(diagnosed(tmp_path, hidden)) == []


def test_nobody_is_asked_for_the_groups_of_who_took_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question reads what every traced process waited for; a rule that fails fails the test."""
    monkeypatch.setattr("ingero.diagnose.causes.cpu.weight_fixes.cgroup_of_pid", None)

    def computing(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5))
        run.culprit(trainer, 900, "hog", QUIET_S, 1000)

    assert causes(diagnosed(tmp_path, computing)) == ["unexplained"]


def test_without_culprits_the_time_is_unexplained(tmp_path: Path) -> None:
    def nobody(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))

    assert causes(diagnosed(tmp_path, nobody)) == ["unexplained"]


def test_without_the_scheduler_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, hogged, not_traced={"culprits": "--scheduler=false"})
    assert causes(diagnosis) == ["unexplained"]
    assert next(one for one in diagnosis.not_evaluated if one.cause == "cpu-contention").reason.endswith("false")


def test_the_affected_is_offered_cores_on_which_the_cpu_user_was_not_seen(tmp_path: Path) -> None:
    def hogged_on_core_2(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer)
        run.off_cpu(trainer, QUIET_S + 1, QUIET_S + 1.002, "runq", culprit=(900, "hog"), cpu=2)

    (incident,) = diagnosed(tmp_path, hogged_on_core_2).incidents
    assert "sudo taskset -acp 0-1,3 100" in [one.command for one in incident.fixes]
    longest = incident.chain[-1]
    assert longest.text == "longest single wait: python [100] behind hog [900] on CPU 2"
    assert longest.seen_ns == pytest.approx(2_000_000, abs=1)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((["GPU-a"], []), "sudo taskset -acp 1 100"),  # not 3, where the culprit was not seen either
        (([], []), "sudo taskset -acp 3 100"),  # its GPU's node is not known: the one that it runs on
    ],
)
def test_the_affected_is_never_sent_away_from_its_gpu(
    tmp_path: Path, gpus: tuple[list[str], list[str]], expected: str
) -> None:
    """CPU 0 and 1 are one NUMA node, 2 and 3 the other."""

    def hogged_on_both(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer)
        run.gpu(1, uuid="GPU-a", processes=[(trainer.pid, 1 << 30)])
        run.append(tables.PROCESS_GPUS, process=trainer.number, ordinal=0, uuid="GPU-a")
        run.numa(("0-1", gpus[0]), ("2-3", gpus[1]))
        for cpu in (0, 2, 2):
            at_s = QUIET_S + 1 + cpu / 10
            run.off_cpu(trainer, at_s, at_s + 0.002, "runq", culprit=(900, "hog"), cpu=cpu)

    (incident,) = diagnosed(tmp_path, hogged_on_both).incidents
    pinning = [one for one in incident.fixes if "taskset" in one.command]
    assert [one.command for one in pinning] == [expected]
    assert "NUMA node" in pinning[0].text


def test_a_cpu_user_in_a_container_is_capped_there(tmp_path: Path) -> None:
    def containerised(run: ScriptedRun, trainer: Actor) -> None:
        run.append(
            tables.CGROUPS, cgroup_id=2, kernel_cgroup_id=2, node="n", container_id="d" * 64, orchestrator="docker",
            runtime="docker",
        )  # fmt: skip
        hogged(run, trainer, cgroup_id=2)

    (incident,) = diagnosed(tmp_path, containerised).incidents
    assert "sudo docker update --cpus=<cores> dddddddddddd" in [one.command for one in incident.fixes]
