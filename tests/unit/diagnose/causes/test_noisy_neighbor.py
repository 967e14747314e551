"""noisy-neighbor: another container had the CPU; a process of the same container is plain contention."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

LATE_MS = 2.0


def neighbourhood(run: ScriptedRun, trainer: Actor, cpu_user_cgroup: int) -> None:
    """Two pods and a service of the host; the trainer runs in group 1."""
    run.append(tables.CGROUPS, cgroup_id=3, kernel_cgroup_id=3, node="demo", unit="fluent-bit.service")
    for group, pod in ((1, "train-0"), (2, "logger-7")):
        run.append(
            tables.CGROUPS, cgroup_id=group, kernel_cgroup_id=group, node="demo", container_id=f"{group:064}", pod=pod
        )
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + LATE_MS, sync={"runq": LATE_MS}))
    for second in range(int(QUIET_S), int(LENGTH_S)):
        lost_ms = LATE_MS * sum(int(end) == second for _, _, end in steps)
        run.culprit(trainer, 900, "fluent-bit", second, lost_ms, cgroup_id=cpu_user_cgroup)


def test_the_neighbors_pod_is_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: neighbourhood(run, trainer, 2), cgroup_id=1)
    assert causes(diagnosis) == ["noisy-neighbor"]
    assert "fluent-bit (900) in pod logger-7" in diagnosis.incidents[0].summary


def test_a_process_of_the_same_container_is_no_neighbor(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: neighbourhood(run, trainer, 1), cgroup_id=1)
    assert causes(diagnosis) == ["cpu-contention"]


def test_a_neighbor_is_capped_through_whoever_runs_it(tmp_path: Path) -> None:
    for group, command in ((2, "kubectl set resources deployment/<that made logger-7> --limits=cpu=<cores>"),
                           (3, "sudo systemctl set-property fluent-bit.service CPUQuota=<percent>%"),
                           (4, "sudo renice -n 19 -p $(ls /proc/900/task)")):  # fmt: skip
        folder = tmp_path / str(group)
        folder.mkdir()
        diagnosis = diagnosed(
            folder, lambda run, trainer, cpu_user=group: neighbourhood(run, trainer, cpu_user), cgroup_id=1
        )  # type: ignore[misc]
        assert command in [one.command for one in diagnosis.incidents[0].fixes]


def test_without_culprits_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"culprits": "--scheduler=false"})
    assert "noisy-neighbor" in {one.cause for one in diagnosis.not_evaluated}
