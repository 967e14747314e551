"""Where an incident was: the line of Python and the call on the critical path, against the baseline."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.diagnose.findings import CodeLine, Incident, Where
from ingero.given_up import STACKS_OFF
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, diagnosed, diagnosed_file

STACK = [("/srv/job/train.py", 142, "forward")]


def hogged(run: ScriptedRun, trainer: Actor, stack: int = 0) -> None:
    """Hogs delay the return of each sync by 3 ms; its calls are recorded with a stack, if there is one."""
    if stack:
        for at_s in range(1, int(LENGTH_S)):
            run.call(trainer, "cudaStreamSynchronize", at_s, 8.0 if at_s >= QUIET_S else 5.0, stack_hash=stack)
    run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=3, sync={"runq": 3}))
    for second in range(int(QUIET_S), int(LENGTH_S)):
        run.culprit(trainer, 900, "stress-ng", second, 300, switches=100)


def incident_of(path: Path, *, has_stacks: bool) -> Incident:
    def scenario(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer, run.stack(STACK) if has_stacks else 0)

    return diagnosed(path, scenario).incidents[0]


def test_the_sync_that_was_late_is_named_with_its_line_though_the_cause_has_none(tmp_path: Path) -> None:
    incident = incident_of(tmp_path, has_stacks=True)
    where = incident.where
    assert incident.line is None
    assert (where.line, where.call) == (
        CodeLine(file="/srv/job/train.py", line=142, function="forward"),
        "cudaStreamSynchronize",
    )
    assert where.mean_ns is not None
    assert where.baseline_ns is not None
    assert where.mean_ns > 1.3 * where.baseline_ns
    assert where.is_exact
    assert where.text.startswith("forward() at train.py:142: cudaStreamSynchronize ")


def test_of_very_many_calls_some_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = incident_of(tmp_path / "whole", has_stacks=True).where
    monkeypatch.setattr("ingero.diagnose.incidents.where._MAX_READ_CALLS", 2)
    some = incident_of(tmp_path / "some", has_stacks=True).where
    assert (some.line, some.call, some.mean_ns) == (whole.line, whole.call, whole.mean_ns)


def test_without_stacks_it_says_why_there_is_no_line(tmp_path: Path) -> None:
    where = incident_of(tmp_path, has_stacks=False).where
    assert where.line is None
    assert where.text == "line not known: no stacks were recorded"


def test_stacks_that_were_off_are_the_reason_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "off.db"
    with ScriptedRun(path, seconds=LENGTH_S, options={"stack": False}) as run:
        trainer = run.process(100, "python")
        run.train(trainer, 0, QUIET_S, Step())
        hogged(run, trainer)
    assert diagnosed_file(path).incidents[0].where.text == "line not known: stacks were off (--no-stack)"


def test_so_is_the_overhead_limiter_where_it_stopped_taking_them(tmp_path: Path) -> None:
    def scenario(run: ScriptedRun, trainer: Actor) -> None:
        hogged(run, trainer)
        run.append(tables.OVERHEAD_LEVELS, time_ns=run.at(1), level=1, not_traced=STACKS_OFF.code)

    where = diagnosed(tmp_path, scenario).incidents[0].where
    assert where.text == "line not known: the overhead limiter had stopped taking stacks"


def test_of_several_calls_the_longest_is_shown_where_the_mean_hides_it() -> None:
    line = CodeLine(file="/srv/job/pkg/__init__.py", line=7, function="load")
    short = Where(line=line, call="cudaMemcpy", mean_ns=2_000_000, baseline_ns=1_000_000, longest_ns=90_000_000)
    assert short.text == ("load() at pkg/__init__.py:7: cudaMemcpy about 2.00 ms (baseline 1.00 ms, longest 90.0 ms)")
    outside = Where(line=line, state="running", mean_ns=2_000_000, baseline_ns=0, per="step")
    assert (
        outside.text == "load() at pkg/__init__.py:7: outside GPU calls, running about 2.00 ms per step (baseline 0 ns)"
    )
