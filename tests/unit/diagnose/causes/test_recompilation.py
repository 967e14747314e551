"""recompilation: modules loaded in the middle of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed


def test_loading_code_in_the_middle_of_a_run_is_named(tmp_path: Path) -> None:
    def recompile(run: ScriptedRun, trainer: Actor) -> None:
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cuModuleLoadData": (1.0, 4.0), "cudaStreamSynchronize": (1.0, 5.0)}
        run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5), calls=calls)

    assert causes(diagnosed(tmp_path, recompile)) == ["recompilation"]


COMPILING = (
    ("/usr/lib/python3.12/concurrent/futures/_base.py", 451, "result"),
    ("/usr/lib/python3.12/site-packages/torch/_inductor/async_compile.py", 310, "wait"),
    ("/srv/job/train.py", 60, "forward"),
)


def test_a_child_that_compiles_makes_no_input_data(tmp_path: Path) -> None:
    def compiled(run: ScriptedRun, trainer: Actor) -> None:
        child = run.process(300, "compile_worker", parent=trainer)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=8.5, idle={"sleep": 8})):
            run.off_cpu(trainer, begin, begin + 0.008, "sleep", waker=child, stack=COMPILING)

    diagnosis = diagnosed(tmp_path, compiled)
    assert causes(diagnosis) == ["recompilation"]
    (incident,) = diagnosis.incidents
    assert "while compile_worker [300] compiled GPU code for it, forward() at /srv/job/train.py:60" in incident.summary
    assert [(one.pid, one.name) for one in incident.culprits] == [(300, "compile_worker")]
    assert incident.lost_ratio == pytest.approx(8 / 14.55, rel=0.05)


def test_a_compiler_in_the_launching_thread_is_no_computing_of_the_program(tmp_path: Path) -> None:
    def compiling(run: ScriptedRun, trainer: Actor) -> None:
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5))[::5]:
            run.sample(trainer, begin + 0.002, COMPILING[1:])

    diagnosis = diagnosed(tmp_path, compiling)
    assert causes(diagnosis) == ["recompilation"]
    assert str(diagnosis.incidents[0].line) == "forward() at /srv/job/train.py:60"


PACKAGES = "/usr/lib/python3.12/site-packages"
RUNNING = (
    (f"{PACKAGES}/triton/compiler/compiler.py", 410, "CompiledKernel.launch_metadata"),
    (f"{PACKAGES}/torch/_inductor/codecache.py", 1131, "CompiledFxGraph.__call__"),
    (f"{PACKAGES}/torch/_inductor/compile_fx.py", 520, "copy_misaligned_inputs"),
    (f"{PACKAGES}/torch/_functorch/_aot_autograd/runtime_wrappers.py", 260, "runtime_wrapper"),
    (f"{PACKAGES}/torch/_dynamo/eval_frame.py", 600, "_fn"),
    ("/srv/job/train.py", 60, "forward"),
)


def test_what_was_compiled_runs_in_the_same_packages(tmp_path: Path) -> None:
    def running(run: ScriptedRun, trainer: Actor) -> None:
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5))[::5]:
            run.sample(trainer, begin + 0.002, RUNNING)

    assert causes(diagnosed(tmp_path, running)) == ["host-bound"]


def test_a_single_load_that_costs_nothing_is_silent(tmp_path: Path) -> None:
    def once(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        run.op(trainer, "cuModuleLoadData", QUIET_S + 1, 1, 4.0)

    assert causes(diagnosed(tmp_path, once)) == []


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"op_stats": "launches only counted"})
    assert "recompilation" in {one.cause for one in diagnosis.not_evaluated}
