"""cgroup-oom and host-oom: critical for the job's own processes, of low weight for strangers."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import FindingKind, Severity
from ingero.events import MEMORY_LIMITS
from ingero.ops import HostOp
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

CAUSES = {"cgroup": "cgroup-oom", "host": "host-oom"}
OWN_GROUP, OTHER_GROUP = 5, 6


def killed(run: ScriptedRun, victim: Actor, limit: str, *, cgroup_id: int, asked_pid: int = 0) -> None:
    """The kernel kills a process."""
    columns = {"arg0": 48 << 20, "arg1": victim.pid, "arg2": MEMORY_LIMITS.index(limit), "cgroup_id": cgroup_id}
    pid = asked_pid or victim.pid
    run.host_event(
        HostOp.OOM_KILL, 8, actor=victim, **columns | {"pid": pid, "tid": pid, "comm": run.text(victim.name)}
    )


@pytest.mark.parametrize("limit", CAUSES)
def test_a_killed_worker_is_critical(tmp_path: Path, limit: str) -> None:
    def script(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        worker = run.process(101, "pt_data_worker", parent=trainer, cgroup_id=OWN_GROUP)
        killed(run, worker, limit, cgroup_id=OWN_GROUP, asked_pid=trainer.pid)

    diagnosis = diagnosed(tmp_path, script, cgroup_id=OWN_GROUP)
    assert causes(diagnosis) == [CAUSES[limit]]
    incident = diagnosis.incidents[0]
    assert (incident.severity, incident.kind) == (Severity.CRITICAL, FindingKind.EVENT)
    assert "pt_data_worker [101], a worker of python [100], was killed with 48.0 MiB" in incident.summary
    assert [(one.pid, one.name) for one in incident.culprits] == [(100, "python")]


def test_a_stranger_in_the_jobs_group_is_an_event_of_low_weight(tmp_path: Path) -> None:
    def script(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        killed(run, Actor(number=0, pid=900, name="eater"), "cgroup", cgroup_id=OWN_GROUP)

    diagnosis = diagnosed(tmp_path, script, cgroup_id=OWN_GROUP)
    assert [(one.cause, one.severity) for one in diagnosis.incidents] == [("cgroup-oom", Severity.LOW)]


@pytest.mark.parametrize("limit", MEMORY_LIMITS)
def test_a_stranger_in_another_group_is_a_mere_event(tmp_path: Path, limit: str) -> None:
    def script(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        killed(run, Actor(number=0, pid=900, name="eater"), limit, cgroup_id=OTHER_GROUP)

    incident = diagnosed(tmp_path, script, cgroup_id=OWN_GROUP).incidents[0]
    assert (incident.severity, incident.kind) == (Severity.LOW, FindingKind.EVENT)
    assert incident.summary.endswith("; no traced process was affected")


def test_without_host_events_they_are_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"HOST": "switched off (host)"})
    assert set(CAUSES.values()) <= {one.cause for one in diagnosis.not_evaluated}
