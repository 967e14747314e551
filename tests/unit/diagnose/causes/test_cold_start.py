"""cold-start: the first steps of a process that began in the recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero import given_up
from ingero.demo.scene import ScriptedRun, Step
from ingero.diagnose.findings import Diagnosis, FindingKind, Incident, Severity
from ingero.store.writing import tables
from tests.unit.diagnose.causes.golden import LENGTH_S, causes, diagnosed, diagnosed_file

WARM = {"cudaLaunchKernel": (80.0, 0.005), "cudaStreamSynchronize": (1.0, 5.0)}


def scene_of(folder: Path, *, began_s: float, first_ms: float = 45) -> list[str]:
    """Half a second of cold steps, then warm ones. first_ms: of the longest launch of each cold step."""
    with ScriptedRun(folder / "cold.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python", start_s=began_s)
        cold = WARM | {"cudaLaunchKernel": (80.0, 0.6)}
        for begin_s, _, _ in run.train(trainer, 0, 0.5, Step(idle_ms=48, idle={"run": 48}), calls=cold):
            run.call(trainer, "cudaLaunchKernel", begin_s, first_ms)
        run.train(trainer, 0.52, LENGTH_S, Step(), calls=WARM)
    return causes(diagnosed_file(folder / "cold.db"))


def test_first_calls_are_slow_in_a_process_that_has_just_begun(tmp_path: Path) -> None:
    assert scene_of(tmp_path, began_s=-1) == ["cold-start"]


def test_launches_that_are_slow_alike_are_no_first_ones(tmp_path: Path) -> None:
    """As from a program that launches slowly, for other reasons, until something changes."""
    assert "cold-start" not in scene_of(tmp_path, began_s=-1, first_ms=0.6)


def test_launches_that_are_all_a_little_slower_are_no_first_ones(tmp_path: Path) -> None:
    """Though each of them is recorded: twice the usual is no first use."""
    with ScriptedRun(tmp_path / "slower.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python", start_s=-1)
        warm, slower = (WARM | {"cudaLaunchKernel": (80.0, ms)} for ms in (0.6, 1.2))
        for begin_s, _, _ in run.train(trainer, 0, 0.5, Step(idle_ms=48, idle={"run": 48}), calls=slower):
            for _ in range(80):
                run.call(trainer, "cudaLaunchKernel", begin_s, 1.2)
        run.train(trainer, 0.52, LENGTH_S, Step(), calls=warm)
    assert "cold-start" not in causes(diagnosed_file(tmp_path / "slower.db"))


def test_calls_that_become_slow_later_are_no_first_calls(tmp_path: Path) -> None:
    """A little is lost from the first second on, as in any young process, and much from the third on."""
    with ScriptedRun(tmp_path / "later.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python", start_s=-1)
        run.train(trainer, 0, 3, Step(idle_ms=0.8, idle={"run": 0.8}), calls=WARM)
        slow = WARM | {"cudaMalloc": (1.0, 4.0)}
        run.train(trainer, 3, 6, Step(idle_ms=4.5, idle={"run": 4.5}), calls=slow)
        run.train(trainer, 6, LENGTH_S, Step(), calls=WARM)
    assert causes(diagnosed_file(tmp_path / "later.db")) == ["allocation-churn"]


def test_a_process_that_ran_before_is_not_cold(tmp_path: Path) -> None:
    assert "cold-start" not in scene_of(tmp_path, began_s=-3600)


def test_launches_that_were_only_counted_later_were_not_slow_before(tmp_path: Path) -> None:
    """Three seconds of steps that compute longer; then tracing had become too expensive."""
    with ScriptedRun(tmp_path / "counted.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python", start_s=-1)
        for at_s, text in ((0.0, ""), (3.0, given_up.LAUNCHES_COUNTED.code)):
            run.append(tables.OVERHEAD_LEVELS, time_ns=run.at(at_s), level=3 if text else 0, not_traced=text, reason="")
        timed, counted = ({"cudaLaunchKernel": (80.0, ms), "cudaStreamSynchronize": (1.0, 5.0)} for ms in (0.04, 0.0))
        run.train(trainer, 0, 3, Step(idle_ms=3.5, idle={"run": 3.5}), calls=timed)
        run.train(trainer, 3, LENGTH_S, Step(), calls=counted)
    (incident,) = diagnosed_file(tmp_path / "counted.db").incidents
    assert incident.cause == "unexplained"
    assert given_up.LAUNCHES_COUNTED.text in incident.summary


def first_call(folder: Path, *, began_s: float, ms: float) -> list[Incident]:
    """One slow first launch before the first step."""
    with ScriptedRun(folder / "first.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python", start_s=began_s)
        run.call(trainer, "cudaLaunchKernel", 0.2, ms)
        run.train(trainer, 1, LENGTH_S, Step(), calls=WARM)
    return list(diagnosed_file(folder / "first.db").incidents)


def test_a_slow_first_call_before_the_first_step_is_an_event(tmp_path: Path) -> None:
    [incident] = first_call(tmp_path, began_s=-1, ms=300)
    assert (incident.cause, incident.kind, incident.severity) == ("cold-start", FindingKind.EVENT, Severity.LOW)
    assert "300 ms in its first call before its first step, most of it in cudaLaunchKernel" in incident.summary


def test_a_short_first_call_is_none(tmp_path: Path) -> None:
    assert first_call(tmp_path, began_s=-1, ms=60) == []


def test_the_same_call_of_a_process_that_ran_before_is_none(tmp_path: Path) -> None:
    assert first_call(tmp_path, began_s=-3600, ms=300) == []


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"op_stats": "launches only counted"})
    assert "cold-start" in {one.cause for one in diagnosis.not_evaluated}


def compiling(
    folder: Path, *, until_s: float = LENGTH_S, awake: float = 0.9, op: str = "cudaLaunchKernel"
) -> Diagnosis:
    """A young process whose first call has not returned; awake: of the time, its thread."""
    with ScriptedRun(folder / "compiles.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python", start_s=-1)
        run.open_call(trainer, op, 1, until_s, awake=awake)
        if until_s < LENGTH_S:
            run.train(trainer, until_s, LENGTH_S, Step(), calls=WARM)
    return diagnosed_file(folder / "compiles.db")


def test_a_first_launch_that_compiles_is_told_while_it_lasts(tmp_path: Path) -> None:
    (incident,) = compiling(tmp_path).incidents
    assert (incident.cause, incident.severity) == ("cold-start", Severity.LOW)
    assert "loading or compiling code for 11.0 s, inside cudaLaunchKernel" in incident.summary
    assert incident.evidence["awake (ns)"] == pytest.approx(9e9, rel=0.01)


def test_a_module_that_is_compiled_as_it_is_loaded_is_told_too(tmp_path: Path) -> None:
    assert causes(compiling(tmp_path, op="cuModuleLoadData")) == ["cold-start"]


def test_it_is_taken_back_when_it_has_returned(tmp_path: Path) -> None:
    assert causes(compiling(tmp_path, until_s=8)) == []


def test_a_first_launch_whose_thread_sleeps_does_not_compile(tmp_path: Path) -> None:
    """For 30 s it may wait for whatever it is; then it hangs."""
    assert causes(compiling(tmp_path, awake=0.1)) == []


def test_a_compiler_that_ran_before_anybody_could_see_its_call_is_told_by_samples(tmp_path: Path) -> None:
    """As when somebody starts to record because nothing happens."""
    with ScriptedRun(tmp_path / "sampled.db", seconds=LENGTH_S) as run:
        trainer = run.process(100, "python", start_s=-60)
        for tick in range(10, int(LENGTH_S * 10)):
            where = [("/app/train.py", 7, "main")]
            native = ("libnvidia-ptxjitcompiler.so.1:compile", "libcuda.so.1:cuModuleLoadData")
            run.sample(trainer, tick / 10, where, ms=100, native=native)
        for second in range(1, int(LENGTH_S)):
            run.second(trainer, second, run=1000)
    (incident,) = diagnosed_file(tmp_path / "sampled.db").incidents
    assert (incident.cause, incident.severity, str(incident.line)) == (
        "cold-start",
        Severity.LOW,
        "main() at /app/train.py:7",
    )
    assert "inside cuModuleLoadData" in incident.summary
