"""major-page-faults: fires for block reads inside page faults of the path; reads by system call are no faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.events import HostFlag
from ingero.ops import IoOp
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

WAIT_MS = 5.0


def faulting(run: ScriptedRun, trainer: Actor, flags: int = int(HostFlag.IN_PAGE_FAULT)) -> None:
    """The trainer touches a page of a mapped file before each step."""
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=0.5 + WAIT_MS, idle={"io": WAIT_MS})):
        run.off_cpu(trainer, begin, begin + WAIT_MS / 1000, "io", waker="block")
        run.host_event(IoOp.READ, begin + 0.0001, actor=trainer, ms=4.8, arg0=1 << 17, arg2=8 << 20, flags=flags)


def test_touched_pages_that_are_read_from_disk_are_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, faulting)
    assert causes(diagnosis) == ["major-page-faults"]
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(WAIT_MS / (6.55 + WAIT_MS), rel=0.05)


def test_single_pages_are_no_storm(tmp_path: Path) -> None:
    def few(run: ScriptedRun, trainer: Actor) -> None:
        step = Step(idle_ms=150.5, idle={"io": 150})
        run.train(trainer, QUIET_S, 9, Step())
        for begin, _, _ in run.train(trainer, 9, LENGTH_S - 1, step):
            run.off_cpu(trainer, begin, begin + 0.15, "io", waker="block")
            flags = int(HostFlag.IN_PAGE_FAULT)
            run.host_event(IoOp.READ, begin, actor=trainer, ms=149, arg0=1 << 17, arg2=8 << 20, flags=flags)

    assert causes(diagnosed(tmp_path, few)) == ["block-io"]


def test_reads_by_system_call_are_no_faults(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: faulting(run, trainer, 0))) == ["block-io"]


def test_without_block_requests_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, faulting, not_traced={"IO": "switched off (io)"})
    assert "major-page-faults" in {one.cause for one in diagnosis.not_evaluated}
