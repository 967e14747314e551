"""cpu-affinity: fires where CPUs outside the mask of a waiting thread were idle."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import FindingKind
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed, diagnosed_file

LATE_MS = 2.0
FREE = (0.5, 0.05, 0.05, 0.05)
ONE_BUSY = (1.0, 0.05, 0.05, 0.05)
ALL_BUSY = (1.0, 1.0, 1.0, 1.0)
Busy = tuple[float, ...]


def pinned(
    run: ScriptedRun,
    trainer: Actor,
    *,
    busy: Busy = ONE_BUSY,
    before: Busy = FREE,
    mask: str = "0",
    seen_s: float = 0.5,
    for_s: float = LENGTH_S - QUIET_S,
) -> None:
    """The trainer is confined to a CPU that it shares with its worker. seen_s: after which the mask is read."""
    worker = run.process(101, "pt_data_worker", parent=trainer)
    steps = run.train(trainer, QUIET_S, QUIET_S + for_s, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
    run.train(trainer, QUIET_S + for_s, LENGTH_S, Step())
    for second in range(int(LENGTH_S)):
        lost_ms = LATE_MS * sum(int(end) == second for _, _, end in steps if second >= QUIET_S)
        run.culprit(trainer, worker.pid, worker.name, second, lost_ms, switches=500)
        run.second(worker, second, run=500 if second >= QUIET_S else 50)
    run.scheduling(trainer.pid, 0, process=trainer.number)
    run.scheduling(trainer.pid, QUIET_S + seen_s, process=trainer.number, cpus_allowed=mask)
    run.cpus(0, int(QUIET_S), before)
    run.cpus(int(QUIET_S), int(LENGTH_S), busy)


def test_a_narrowed_mask_is_named_with_the_cpus_that_stood_idle(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, pinned)
    assert causes(diagnosis) == ["cpu-affinity"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ratio == pytest.approx(LATE_MS / (6.55 + LATE_MS), rel=0.05)
    assert "CPU 0 only, before 0-3, while CPU 1-3 were idle 95%" in incident.summary
    assert incident.fixes[0].command == "sudo taskset -acp 0-3 100"


@pytest.mark.parametrize(("seen_s", "for_s", "expected"), [(0.95, 1.4, ["cpu-affinity"]), (1.6, 2.0, [])])
def test_a_mask_holds_since_a_loss_began_within_the_second_in_which_it_was_read(
    tmp_path: Path, seen_s: float, for_s: float, expected: list[str]
) -> None:
    """Most was lost before the reading: what began more than a second earlier had another reason."""
    diagnosis = diagnosed(tmp_path, lambda run, trainer: pinned(run, trainer, seen_s=seen_s, for_s=for_s))
    assert [cause for cause in causes(diagnosis) if cause == "cpu-affinity"] == expected


def test_a_narrowed_mask_owns_all_waiting_where_others_use_no_more_than_before(tmp_path: Path) -> None:
    def shared(run: ScriptedRun, trainer: Actor) -> None:
        """Others use 0.65 of the only other CPU, as they always did."""
        pinned(run, trainer, busy=(0.5, 0.65), before=(0.05, 0.65), mask="0")

    (incident,) = diagnosed(tmp_path, shared).incidents
    assert incident.cause == "cpu-affinity"
    assert incident.lost_ratio == pytest.approx(LATE_MS / (6.55 + LATE_MS), rel=0.1)


def test_a_narrowed_mask_owns_less_where_others_came_at_the_same_time(tmp_path: Path) -> None:
    def crowded(run: ScriptedRun, trainer: Actor) -> None:
        pinned(run, trainer, busy=(0.5, 0.6), before=(0.05, 0.05), mask="0")

    (incident,) = diagnosed(tmp_path, crowded).incidents
    assert incident.cause == "unexplained"
    assert incident.evidence["partly cpu-affinity (ratio)"] == pytest.approx(0.45, abs=0.07)


@pytest.mark.parametrize(("is_new", "expected"), [(True, ["cpu-affinity"]), (False, [])])
def test_a_mask_that_was_always_there_is_not_what_made_a_minute_a_little_worse(
    tmp_path: Path, is_new: bool, expected: list[str]
) -> None:
    """4% more waiting, and 2% more computing as where a CPU takes longer for the same work."""

    def crowded(run: ScriptedRun, trainer: Actor) -> None:
        runq_ms, run_ms = 0.27, 0.65
        step = Step(idle_ms=run_ms, idle={"run": run_ms}, return_delay_ms=0.05 + runq_ms, sync={"runq": runq_ms})
        worker = run.process(101, "pt_data_worker", parent=trainer)
        run.train(trainer, QUIET_S, LENGTH_S, step)
        for second in range(int(LENGTH_S)):
            run.culprit(trainer, worker.pid, worker.name, second, 40 if second >= QUIET_S else 0, switches=100)
            run.second(worker, second, run=300)
        if is_new:
            run.scheduling(trainer.pid, 0, process=trainer.number)
        run.scheduling(trainer.pid, QUIET_S + 0.5 if is_new else 0, process=trainer.number, cpus_allowed="0")
        run.cpus(0, int(LENGTH_S), ONE_BUSY)

    assert causes(diagnosed(tmp_path, crowded)) == expected


def test_a_confined_worker_is_named(tmp_path: Path) -> None:
    def worker_pinned(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
            run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
            run.off_cpu(worker, begin + 0.001, begin + 0.019, "runq", culprit=(900, "hog"))
        run.scheduling(trainer.pid, process=trainer.number)
        run.scheduling(worker.pid, process=worker.number, cpus_allowed="0")
        run.cpus(0, int(LENGTH_S), ONE_BUSY)

    diagnosis = diagnosed(tmp_path, worker_pinned)
    assert causes(diagnosis) == ["cpu-affinity"]
    assert "its worker pt_data_worker [101] may run on CPU 0 only" in diagnosis.incidents[0].summary


def test_a_confined_worker_of_a_trainer_with_a_wider_mask_is_named(tmp_path: Path) -> None:
    def bound(run: ScriptedRun, trainer: Actor) -> None:
        worker = run.process(101, "pt_data_worker", parent=trainer)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
            run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
            run.off_cpu(worker, begin + 0.001, begin + 0.019, "runq", culprit=(900, "hog"))
        run.scheduling(trainer.pid, process=trainer.number, cpus_allowed="0-1")
        run.scheduling(worker.pid, process=worker.number, cpus_allowed="0")
        run.cpus(0, int(LENGTH_S), ONE_BUSY)

    (incident,) = diagnosed(tmp_path, bound).incidents
    assert "its worker pt_data_worker [101] may run on CPU 0 only" in incident.summary
    assert [one.command for one in incident.fixes] == ["sudo taskset -acp 0-3 101"]


def test_a_job_that_was_always_confined_is_told_as_a_bottleneck_of_its_mask(tmp_path: Path) -> None:
    path = tmp_path / "scene.db"
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        worker = run.process(101, "pt_data_worker", parent=trainer)
        steps = run.train(trainer, 0, LENGTH_S, Step(idle_ms=2.0, idle={"runq": 1.6}))
        for second in range(int(LENGTH_S)):
            lost_ms = 1.6 * sum(int(end) == second for _, _, end in steps)
            run.culprit(trainer, worker.pid, worker.name, second, lost_ms, switches=500)
        for one in (trainer, worker):
            run.scheduling(one.pid, 0, process=one.number, cpus_allowed="0")
        run.cpus(0, int(LENGTH_S), ONE_BUSY)
    diagnosis = diagnosed_file(path)
    assert causes(diagnosis) == ["cpu-affinity"]
    assert diagnosis.incidents[0].kind is FindingKind.BOTTLENECK


def test_busy_cpus_outside_the_mask_would_not_have_helped(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: pinned(run, trainer, busy=ALL_BUSY))
    assert causes(diagnosis) == ["unexplained"]


def test_a_thread_that_may_run_everywhere_is_not_confined(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: pinned(run, trainer, mask="0-3"))
    assert causes(diagnosis) == ["self-oversubscription"]


def test_without_cpu_seconds_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, pinned, not_traced={"cpu_seconds": "an older recording"})
    assert "cpu-affinity" in {one.cause for one in diagnosis.not_evaluated}
    assert causes(diagnosis) == ["unexplained"]


def two_nodes(run: ScriptedRun, trainer: Actor, *, mask: str = "0", home: int = 0) -> None:
    """CPU 0 and 1 are one node, 2 and 3 the other; the GPU is on `home`."""
    pinned(run, trainer, mask=mask)
    run.gpu(1, uuid="GPU-a", processes=[(trainer.pid, 1 << 30)])
    run.append(tables.PROCESS_GPUS, process=trainer.number, ordinal=0, uuid="GPU-a")
    run.numa(("0-1", ["GPU-a"] if home == 0 else []), ("2-3", ["GPU-a"] if home == 1 else []))


def test_a_wider_mask_stays_on_the_node_of_the_gpu(tmp_path: Path) -> None:
    (fix,) = diagnosed(tmp_path, two_nodes).incidents[0].fixes
    assert fix.text == "allow 100 on every CPU of NUMA node 0, its GPU's"
    assert fix.command == "sudo taskset -acp 0-1 100"


def test_a_mask_on_the_wrong_node_is_moved_to_that_of_the_gpu(tmp_path: Path) -> None:
    (fix,) = diagnosed(tmp_path, lambda run, trainer: two_nodes(run, trainer, home=1)).incidents[0].fixes
    assert fix.command == "sudo taskset -acp 2-3 100"


def test_who_has_all_of_the_node_already_is_told_that_others_are_farther(tmp_path: Path) -> None:
    (fix,) = diagnosed(tmp_path, lambda run, trainer: two_nodes(run, trainer, mask="0-1")).incidents[0].fixes
    assert "it has all of NUMA node 0, its GPU's already, and others are farther" in fix.text
    assert fix.command == "sudo taskset -acp 0-3 100"
