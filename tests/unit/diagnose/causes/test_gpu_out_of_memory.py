"""gpu-out-of-memory: a request failed for good; one that is repeated with success is none."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import Severity
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed
from tests.unit.diagnose.causes.requests import GIB, LINE, refused, retried, sampled


def full(run: ScriptedRun, trainer: Actor) -> None:
    """The trainer holds 9 GiB, a notebook 6, and 2 more are asked for."""
    run.process(300, "jupyter")
    run.train(trainer, QUIET_S, 8, Step())
    sampled(run, LENGTH_S, 15 * GIB, (300, 6 * GIB))
    run.memory(trainer, "cudaMalloc", 1, 9, GIB, stack=run.stack([("/srv/model.py", 7, "load")]))
    refused(run, trainer, 8.2, 2 * GIB, stack=run.stack([LINE]))


def test_a_request_that_failed_is_critical_with_line_holders_and_neighbors(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, full)
    assert causes(diagnosis) == ["gpu-out-of-memory"]
    incident = diagnosis.incidents[0]
    assert incident.severity is Severity.CRITICAL
    assert "asked for 2.00 GiB of GPU memory in step() at /srv/train.py:42" in incident.summary
    assert "it holds 9.00 GiB from load() at /srv/model.py:7" in incident.summary
    assert [one.pid for one in incident.culprits] == [100, 300]
    assert "jupyter with 6.00 GiB [300]" in incident.summary


def test_a_process_that_ended_by_it_is_said_to(tmp_path: Path) -> None:
    with_end = diagnosed(tmp_path, full, exit_ns=1_760_000_000_000_000_000 + 9_000_000_000, exit_code=1 << 8)
    assert "then ended with code 1" in with_end.incidents[0].summary


def test_one_fault_is_one_incident_however_often_it_is_tried(tmp_path: Path) -> None:
    def tried(run: ScriptedRun, trainer: Actor) -> None:
        full(run, trainer)
        for second in (9, 10, 11):
            refused(run, trainer, second, 2 * GIB, stack=run.stack([LINE]))

    diagnosis = diagnosed(tmp_path, tried)
    assert causes(diagnosis) == ["gpu-out-of-memory"]
    assert diagnosis.incidents[0].evidence["requests that failed"] == 1
    assert "4 times" in diagnosis.incidents[0].chain[0].text


def test_a_request_that_succeeds_the_second_time_is_none(tmp_path: Path) -> None:
    def recovered(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        sampled(run, LENGTH_S, 15 * GIB)
        retried(run, trainer, 8.2, 2 * GIB)

    assert causes(diagnosed(tmp_path, recovered)) == []


def test_a_process_that_goes_on_without_it_is_not_critical(tmp_path: Path) -> None:
    def going_on(run: ScriptedRun, trainer: Actor) -> None:
        full(run, trainer)
        run.train(trainer, 8.3, LENGTH_S, Step())

    diagnosis = diagnosed(tmp_path, going_on)
    assert causes(diagnosis) == ["gpu-out-of-memory"]
    assert diagnosis.incidents[0].severity is Severity.HIGH
    assert "and went on without it" in diagnosis.incidents[0].summary


def test_where_not_every_call_has_a_record_a_process_that_goes_on_may_have_got_it(tmp_path: Path) -> None:
    def sparse(run: ScriptedRun, trainer: Actor) -> None:
        full(run, trainer)
        run.train(trainer, 8.3, LENGTH_S, Step())
        run.op(trainer, "cudaMalloc", 8, 400, 0.06, recorded=80)

    assert causes(diagnosed(tmp_path, sparse)) == []


def test_another_error_is_no_lack_of_memory(tmp_path: Path) -> None:
    def invalid(run: ScriptedRun, trainer: Actor) -> None:
        run.call(trainer, "cudaMalloc", 8.2, 0.1, arg0=GIB, ret_code=1)
        run.memory(trainer, "cudaMalloc", 8, 0, GIB, failures=1)

    assert causes(diagnosed(tmp_path, invalid)) == []


def test_without_allocations_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, full, not_traced={"allocations": "entry probes only"})
    assert "gpu-out-of-memory" in {one.cause for one in diagnosis.not_evaluated}
