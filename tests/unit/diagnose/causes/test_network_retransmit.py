"""network-retransmit: fires for waits of a worker that hold a retransmit of its own connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.ops import NetOp, TcpOp
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

HERE, THERE = 40000, 6379


def losing(run: ScriptedRun, trainer: Actor, *, at_s: float = 0.010, ports: tuple[int, int] = (THERE, HERE)) -> None:
    """A worker waits for its store; a segment is sent again at_s after each wait began."""
    worker = run.process(101, "pt_data_worker", parent=trainer)
    run.host_event(NetOp.RECEIVE, 1, actor=worker, arg0=1 << 20, arg1=HERE << 16 | THERE)
    ends = run.text("10.0.0.7 > 10.0.0.2")
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
        run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
        run.off_cpu(worker, begin + 0.001, begin + 0.019, "sleep", waker="network")
        between = ports[0] << 16 | ports[1]
        run.host_event(TcpOp.RETRANSMIT, begin + at_s, arg0=1448, arg1=between, arg2=1 << 16 | 1, detail=ends)


def test_a_wait_with_a_retransmit_inside_is_charged_to_the_network(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, losing)
    assert causes(diagnosis) == ["network-retransmit"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ratio == pytest.approx(18 / 26.55, rel=0.1)
    assert incident.root == "10.0.0.7:6379"


def test_a_retransmit_beside_the_waits_is_no_reason(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: losing(run, trainer, at_s=0.0245))
    assert causes(diagnosis) == ["data-starvation"]


def test_a_retransmit_of_somebody_elses_connection_is_no_reason(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: losing(run, trainer, ports=(THERE, HERE + 1)))
    assert causes(diagnosis) == ["data-starvation"]


def test_without_retransmits_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, losing, not_traced={"TCP": "switched off (tcp)"})
    assert causes(diagnosis) == ["data-starvation"]
    assert "network-retransmit" in {one.cause for one in diagnosis.not_evaluated}
