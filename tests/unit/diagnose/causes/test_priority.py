"""priority: fires where who ran goes before the waiting thread, and leaves equals to cpu-contention."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.store.writing import tables
from ingero.store.writing.tables import Value
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

LATE_MS = 2.0
NOBODY = -1


def hogged(
    run: ScriptedRun, trainer: Actor, affected: dict[str, Value], hog: dict[str, Value], *, cgroup_id: int = 0
) -> None:
    """A hog takes the CPU at the end of each sync; from QUIET_S on affected process and hog are scheduled as told."""
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
    for second in range(int(QUIET_S), int(LENGTH_S)):
        lost_ms = LATE_MS * sum(int(end) == second for _, _, end in steps)
        run.culprit(trainer, 900, "hog", second, lost_ms, switches=500, cgroup_id=cgroup_id)
    run.scheduling(trainer.pid, 0, process=trainer.number)
    run.scheduling(trainer.pid, QUIET_S + 0.5, process=trainer.number, **affected)
    run.scheduling(900, QUIET_S + 1, **hog)


def test_a_reniced_affected_is_told_both_numbers(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: hogged(run, trainer, {"nice": 19}, {"nice": 0}))
    assert causes(diagnosis) == ["priority"]
    incident = diagnosis.incidents[0]
    assert "nice 0 vs 19; nice of 100 was 0 before" in incident.summary
    assert [one.pid for one in incident.culprits] == [900]
    assert incident.lost_ratio == pytest.approx(LATE_MS / (6.55 + LATE_MS), rel=0.05)
    assert incident.fixes[0].command == "sudo renice -n 0 -p $(ls /proc/100/task)"


def test_where_only_the_others_can_change_the_way_out_says_just_that(tmp_path: Path) -> None:
    """The affected process's priority is the usual one, so "give it back" is left out and nothing comes before "or"."""
    diagnosis = diagnosed(tmp_path, lambda run, trainer: hogged(run, trainer, {"nice": 0}, {"nice": -14}))
    assert causes(diagnosis) == ["priority"]
    first = diagnosis.incidents[0].fixes[0]
    assert (first.text, first.command) == (
        "lower the priority of the others",
        "sudo renice -n 19 -p $(ls /proc/900/task)",
    )


def test_a_real_time_process_goes_before_everyone(tmp_path: Path) -> None:
    real_time: dict[str, Value] = {"policy": "fifo", "rt_priority": 50}
    diagnosis = diagnosed(tmp_path, lambda run, trainer: hogged(run, trainer, {}, real_time))
    assert causes(diagnosis) == ["priority"]
    assert "policy fifo 50" in diagnosis.incidents[0].summary


def test_a_heavier_control_group_goes_before(tmp_path: Path) -> None:
    def heavier(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer, {"cpu_weight": 100}, {"cpu_weight": 1000}, cgroup_id=7)

    diagnosis = diagnosed(tmp_path, heavier)
    assert causes(diagnosis) == ["priority"]
    assert "CPU weight 1000 vs 100" in diagnosis.incidents[0].summary


def test_weights_of_groups_that_are_not_side_by_side_mean_nothing(tmp_path: Path) -> None:
    """There the two slices are weighed, which are equal."""

    def heavier(run: ScriptedRun, trainer: Actor) -> None:
        for group, path in ((1, "/user.slice/job.scope"), (7, "/system.slice/db.service")):
            run.append(tables.CGROUPS, cgroup_id=group, kernel_cgroup_id=group, node="n", cgroup_path=path)
        hogged(run, trainer, {"cpu_weight": 100}, {"cpu_weight": 1000}, cgroup_id=7)

    assert causes(diagnosed(tmp_path, heavier, cgroup_id=1)) == ["cpu-contention"]


def test_the_wait_for_a_worker_is_charged_once(tmp_path: Path) -> None:
    """What nobody is named for is not an equal's that took a hundredth of it beside a process that goes first."""

    def starved(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        run.scheduling(worker.pid, 0, process=worker.number)
        run.scheduling(900, QUIET_S, nice=-14)
        run.scheduling(50, QUIET_S)
        for begin, _, end in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=6.5, idle={"sleep": 6})):
            run.off_cpu(trainer, begin, begin + 0.006, "sleep", waker=worker)
            run.off_cpu(worker, begin, begin + 0.0059, "runq", culprit=(900, "hog"))
            run.culprit(worker, 900, "hog", int(end), 4.8)
            run.culprit(worker, 50, "kworker", int(end), 0.05)
            run.culprit(worker, NOBODY, "", int(end), 1.05)

    (incident,) = diagnosed(tmp_path, starved).incidents
    assert (incident.cause, [one.name for one in incident.culprits]) == ("priority", ["hog"])


@pytest.mark.parametrize(
    ("begins_s", "unread_share", "expected"),
    [
        (LENGTH_S - 0.9, 0.4, ["priority"]),
        (QUIET_S, 0.4, ["priority", "cpu-contention"]),
        (LENGTH_S - 0.9, 0.6, ["cpu-contention", "priority"]),
    ],
    ids=["to be read", "never read", "most is unknown"],
)
def test_who_came_a_moment_ago_is_not_called_an_equal_before_its_priority_is_read(
    tmp_path: Path, begins_s: float, unread_share: float, expected: list[str]
) -> None:
    """One that was never read, because it ended, is one of whom nothing is known for good."""

    def half_known(run: ScriptedRun, trainer: Actor) -> None:
        ends_s = begins_s + 0.9
        run.train(trainer, QUIET_S, begins_s, Step())
        steps = run.train(trainer, begins_s, ends_s, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
        run.train(trainer, ends_s, LENGTH_S, Step())
        for second in range(int(begins_s), int(ends_s) + 1):
            lost_ms = LATE_MS * sum(int(end) == second for _, _, end in steps)
            for pid, share in ((900, 1 - unread_share), (901, unread_share)):
                run.culprit(trainer, pid, "hog", second, share * lost_ms, switches=250)
        run.scheduling(trainer.pid, 0, process=trainer.number, nice=19)
        run.scheduling(900, begins_s + 0.5)

    assert causes(diagnosed(tmp_path, half_known)) == expected


@pytest.mark.parametrize("nice", [0, 2, 19])
def test_equals_and_those_behind_are_contention(tmp_path: Path, nice: int) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: hogged(run, trainer, {"nice": 2}, {"nice": nice}))
    assert causes(diagnosis) == ["cpu-contention"]


def test_nice_means_nothing_between_control_groups(tmp_path: Path) -> None:
    def elsewhere(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer, {"nice": 19}, {"nice": 0}, cgroup_id=7)

    assert causes(diagnosed(tmp_path, elsewhere)) == ["cpu-contention"]


def test_the_policy_idle_means_nothing_between_control_groups(tmp_path: Path) -> None:
    def elsewhere(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer, {"policy": "idle"}, {}, cgroup_id=7)

    assert causes(diagnosed(tmp_path, elsewhere)) == ["cpu-contention"]


def test_without_scheduling_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(
        tmp_path,
        lambda run, trainer: hogged(run, trainer, {"nice": 19}, {}),
        not_traced={"scheduling": "an older recording"},
    )
    assert causes(diagnosis) == ["cpu-contention"]
    assert "priority" in {one.cause for one in diagnosis.not_evaluated}
