"""A bottleneck that an incident makes worse is said in the incident; another trouble of the same loop stays its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import HIGH_RATIO, Affected, Diagnosis, FindingKind, Incident, Severity
from ingero.diagnose.incidents.incident_changes import ChangeKind
from ingero.diagnose.incidents.tracker import IncidentTracker
from ingero.ops import IoOp
from ingero.store.records import Window
from ingero.units import SECOND_NS
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed_file

BASE_MS, STORM_MS = 2.0, 8.0
DISK = 8 << 20


def starving(folder: Path, *, return_delay_ms: float = 0.0, storm_ms: float = STORM_MS) -> Diagnosis:
    """A loop that always waits for a worker that computes; from QUIET_S on it reads from a busy disk, too.

    return_delay_ms: instead of the disk, a hog takes the CPU at the end of each sync.
    """
    with ScriptedRun(folder / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        worker = run.process(101, "pt_data_worker", parent=trainer)
        _wait_for(run, trainer, worker, 0, QUIET_S)
        if return_delay_ms:
            _wait_for(run, trainer, worker, QUIET_S, LENGTH_S, return_delay_ms=return_delay_ms)
            for second in range(int(QUIET_S), int(LENGTH_S)):
                run.culprit(trainer, 900, "hog", second, 180 * return_delay_ms)
        else:
            _wait_for(run, trainer, worker, QUIET_S, LENGTH_S, disk_ms=storm_ms)
    return diagnosed_file(folder / "scene.db")


def _wait_for(
    run: ScriptedRun,
    trainer: Actor,
    worker: Actor,
    begin_s: float,
    end_s: float,
    *,
    disk_ms: float = 0,
    return_delay_ms: float = 0,
) -> None:
    wait_ms = BASE_MS + disk_ms
    sync = {"runq": return_delay_ms} if return_delay_ms else {}
    step = Step(idle_ms=0.3 + wait_ms, idle={"sleep": wait_ms}, return_delay_ms=0.05 + return_delay_ms, sync=sync)
    for begin, _, _ in run.train(trainer, begin_s, end_s, step):
        run.off_cpu(trainer, begin, begin + wait_ms / 1e3, "sleep", waker=worker)
        if disk_ms:
            run.off_cpu(worker, begin, begin + disk_ms / 1e3, "io", waker="block")
            run.host_event(IoOp.READ, begin, actor=worker, ms=disk_ms, arg0=1 << 20, arg2=DISK)
        else:  # it has slept before, so that it is seen to run
            run.off_cpu(worker, begin - 0.001, begin - 0.0005, "sleep", waker="timer")


def test_a_bottleneck_has_lost_its_share_of_all_the_time_that_is_in_no_incident(tmp_path: Path) -> None:
    """The best seconds say what it is; it has been there in the others, too, which took a hundredth or two longer."""
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        worker = run.process(101, "pt_data_worker", parent=trainer)
        _wait_for(run, trainer, worker, 0, 2, return_delay_ms=0.15)
        _wait_for(run, trainer, worker, 2, 4)
        _wait_for(run, trainer, worker, 4, LENGTH_S, return_delay_ms=0.15)
    (found,) = diagnosed_file(tmp_path / "scene.db").incidents
    assert (found.cause, found.kind) == ("data-starvation", FindingKind.BOTTLENECK)
    assert found.end_ns is not None
    assert found.end_ns - found.start_ns == pytest.approx(LENGTH_S * SECOND_NS, rel=0.02)
    share = BASE_MS / 8.4  # of a step
    assert found.lost_ns == pytest.approx(share * LENGTH_S * SECOND_NS, rel=0.1)
    assert found.lost_ratio == pytest.approx(share, rel=0.1)


def test_a_disk_that_makes_a_slow_worker_slower_is_one_incident_that_says_so(tmp_path: Path) -> None:
    (incident,) = starving(tmp_path).incidents
    assert (incident.cause, incident.kind) == ("block-io", FindingKind.INCIDENT)
    assert incident.evidence["lost in the baseline to"] == "data-starvation"
    share = incident.evidence["lost in the baseline to data-starvation (ratio)"]
    assert share == pytest.approx(BASE_MS / (6.05 + 0.3 + BASE_MS), rel=0.1)
    assert "24% of wall time is lost to data-starvation even in the baseline" in incident.summary


def test_ranks_that_lose_together_tell_what_is_lost_at_best_once(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        for pid, storm_ms in ((100, STORM_MS), (200, STORM_MS - 1)):
            trainer = run.process(pid, "python")
            worker = run.process(pid + 1, "pt_data_worker", parent=trainer)
            _wait_for(run, trainer, worker, 0, QUIET_S)
            _wait_for(run, trainer, worker, QUIET_S, LENGTH_S, disk_ms=storm_ms)
    (incident,) = diagnosed_file(tmp_path / "scene.db").incidents
    assert (incident.cause, [one.pid for one in incident.affected]) == ("block-io", [100, 200])
    assert incident.evidence["lost in the baseline to"] == "data-starvation"


def test_what_is_lost_at_best_is_not_added(tmp_path: Path) -> None:
    (incident,) = starving(tmp_path).incidents
    assert incident.lost_ratio == pytest.approx(STORM_MS / (8.35 + STORM_MS), rel=0.05)
    assert any(one.text.startswith("in the baseline: python [100] waited") for one in incident.chain)


def test_a_bottleneck_is_no_less_severe_for_being_said_in_a_small_incident(tmp_path: Path) -> None:
    (incident,) = starving(tmp_path, storm_ms=2.0).incidents
    assert incident.evidence["lost in the baseline to"] == "data-starvation"
    assert incident.lost_ratio < HIGH_RATIO
    assert incident.severity is Severity.HIGH


def test_an_incident_of_another_kind_leaves_the_bottleneck_its_own(tmp_path: Path) -> None:
    assert sorted(causes(starving(tmp_path, return_delay_ms=2.0))) == ["cpu-contention", "data-starvation"]


def test_two_losses_without_an_owner_are_not_one_trouble(tmp_path: Path) -> None:
    """Nobody is known to take the CPU at the end of each sync, and later nothing says what is computed before it."""
    with ScriptedRun(tmp_path / "scene.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, QUIET_S, Step(return_delay_ms=1.25, sync={"runq": 1.2}))
        run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5, return_delay_ms=1.25, sync={"runq": 1.2}))
    found = diagnosed_file(tmp_path / "scene.db").incidents
    assert {one.cause for one in found} == {"unexplained"}
    assert {one.kind for one in found} == {FindingKind.INCIDENT, FindingKind.BOTTLENECK}


def incident(cause: str, kind: FindingKind, **evidence: str) -> Incident:
    return Incident(
        number=0, cause=cause, resource="r", root="100", kind=kind, severity=Severity.LOW, start_ns=0, end_ns=SECOND_NS,
        lost_ns=SECOND_NS, lost_ratio=0.2, explained_ratio=1.0, peak_ratio=0.2, summary="", evidence=evidence,
        affected=(Affected(process=1, pid=100, name="python"),),
    )  # fmt: skip


def diagnosis(now_s: int, *incidents: Incident) -> Diagnosis:
    seen = tuple(replace(one, end_ns=now_s * SECOND_NS) for one in incidents)
    window = Window(begin_ns=0, end_ns=now_s * SECOND_NS)
    return Diagnosis(window=window, incidents=seen, verdicts=(), not_evaluated=(), not_traced={})


def test_a_bottleneck_that_was_told_stays_open_while_an_incident_speaks_for_it() -> None:
    base = incident("data-starvation", FindingKind.BOTTLENECK)
    storm = incident("block-io", FindingKind.INCIDENT, **{"lost in the baseline to": "data-starvation"})
    tracker = IncidentTracker()
    kinds = [
        (change.kind, change.incident.cause)
        for now_s in range(1, 60)
        for change in tracker.update(diagnosis(now_s, storm if now_s > 40 else base), now_s * SECOND_NS)
    ]
    assert [one for one in kinds if one[0] is not ChangeKind.UPDATED] == [
        (ChangeKind.OPENED, "data-starvation"),
        (ChangeKind.OPENED, "block-io"),
    ]
