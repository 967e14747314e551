"""cuda-graph-capture-failure: the code of the capture, and the call that broke it."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed

LINE = ("/srv/train.py", 42, "step")


def capturing(run: ScriptedRun, trainer: Actor, *, sync: int, end: int) -> None:
    """A capture in which the host waits for the GPU."""
    run.train(trainer, QUIET_S, LENGTH_S, Step())
    run.call(trainer, "cudaStreamBeginCapture", 8.0, 0.01)
    run.call(trainer, "cudaStreamSynchronize", 8.001, 0.01, ret_code=sync, stack_hash=run.stack([LINE]))
    run.call(trainer, "cudaStreamEndCapture", 8.002, 0.01, ret_code=end)


def test_the_call_that_broke_the_capture_is_named_with_its_line(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: capturing(run, trainer, sync=900, end=901))
    assert causes(diagnosis) == ["cuda-graph-capture-failure"]
    incident = diagnosis.incidents[0]
    assert "cudaStreamEndCapture returned error 901" in incident.summary
    assert "because cudaStreamSynchronize was called in the capture" in incident.summary
    assert incident.line is not None
    assert incident.line.line == 42


def test_a_failure_that_nothing_recorded_explains_has_no_culprit_call(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: capturing(run, trainer, sync=0, end=904))
    assert causes(diagnosis) == ["cuda-graph-capture-failure"]
    assert diagnosis.incidents[0].evidence["broken by"] is None


def test_a_capture_that_succeeds_is_silent(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: capturing(run, trainer, sync=0, end=0))) == []


def test_an_update_that_does_not_fit_is_no_failure(tmp_path: Path) -> None:
    def updated(run: ScriptedRun, trainer: Actor) -> None:
        run.call(trainer, "cudaGraphExecUpdate", 8.0, 0.01, ret_code=910)

    assert causes(diagnosed(tmp_path, updated)) == []


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"op_stats": "launches only counted"})
    assert "cuda-graph-capture-failure" in {one.cause for one in diagnosis.not_evaluated}
