"""managed-memory-oversubscription: more of it is live than the one GPU of the process has."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed
from tests.unit.diagnose.causes.requests import GIB, sampled


def managing(run: ScriptedRun, trainer: Actor, gib: int, *, freed: int = 0) -> None:
    run.train(trainer, QUIET_S, LENGTH_S, Step())
    sampled(run, LENGTH_S, 15 * GIB)
    run.memory(trainer, "cudaMallocManaged", 7, gib, GIB, freed=freed)


def test_more_managed_memory_than_the_gpu_has_is_told(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: managing(run, trainer, 20))
    assert causes(diagnosis) == ["managed-memory-oversubscription"]
    assert "holds 20.0 GiB of managed memory on a GPU with 16.0 GiB" in diagnosis.incidents[0].summary


def test_what_was_freed_meanwhile_does_not_count(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: managing(run, trainer, 20, freed=8))) == []


def test_a_process_with_two_gpus_is_not_judged(tmp_path: Path) -> None:
    def two(run: ScriptedRun, trainer: Actor) -> None:
        managing(run, trainer, 20)
        for second in range(int(LENGTH_S)):
            run.gpu(second + 0.5, uuid="GPU-1", total_bytes=16 * GIB, processes=[(100, GIB)])

    assert causes(diagnosed(tmp_path, two)) == []


def test_without_the_driver_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: managing(run, trainer, 20), not_traced={"GPU": "no NVML"})
    assert "managed-memory-oversubscription" in {one.cause for one in diagnosis.not_evaluated}
