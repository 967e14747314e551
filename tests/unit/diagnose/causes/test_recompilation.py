"""recompilation: modules loaded in the middle of a run."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed


def test_loading_code_in_the_middle_of_a_run_is_named(tmp_path: Path) -> None:
    def recompile(run: ScriptedRun, trainer: Actor) -> None:
        calls = {"cudaLaunchKernel": (80.0, 0.005), "cuModuleLoadData": (1.0, 4.0), "cudaStreamSynchronize": (1.0, 5.0)}
        run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=4.5), calls=calls)

    assert causes(diagnosed(tmp_path, recompile)) == ["recompilation"]


def test_a_single_load_that_costs_nothing_is_silent(tmp_path: Path) -> None:
    def once(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        run.op(trainer, "cuModuleLoadData", QUIET_S + 1, 1, 4.0)

    assert causes(diagnosed(tmp_path, once)) == []


def test_without_exact_sums_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda _run, _trainer: None, not_traced={"op_stats": "launches only counted"})
    assert "recompilation" in {one.cause for one in diagnosis.not_evaluated}
