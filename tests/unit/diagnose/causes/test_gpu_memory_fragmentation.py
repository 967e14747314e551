"""gpu-memory-fragmentation: a request failed although more was free; abstains where that is not proven."""

from __future__ import annotations

from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed
from tests.unit.diagnose.causes.requests import GIB, LINE, refused, sampled


def refused_with(run: ScriptedRun, trainer: Actor, used_bytes: int) -> None:
    run.train(trainer, QUIET_S, LENGTH_S, Step())
    sampled(run, LENGTH_S, used_bytes)
    refused(run, trainer, 8.2, 2 * GIB, stack=run.stack([LINE]))


def test_a_request_that_failed_beside_free_memory_is_fragmentation(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: refused_with(run, trainer, 10 * GIB))
    assert causes(diagnosis) == ["gpu-memory-fragmentation"]
    incident = diagnosis.incidents[0]
    assert "asked for 2.00 GiB" in incident.summary
    assert "although 6.00 GiB was free" in incident.summary
    assert incident.line is not None
    assert incident.line.line == 42


def test_a_request_for_more_than_is_free_is_not(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: refused_with(run, trainer, 15 * GIB))
    assert causes(diagnosis) == ["gpu-out-of-memory"]


def test_memory_that_became_free_only_afterwards_proves_nothing(tmp_path: Path) -> None:
    def ended(run: ScriptedRun, trainer: Actor) -> None:
        run.train(trainer, QUIET_S, LENGTH_S, Step())
        for second in range(int(LENGTH_S)):
            used = 15 * GIB if second < 8 else 4 * GIB
            run.gpu(second + 0.5, used_bytes=used, total_bytes=16 * GIB, processes=[(100, used)])
        refused(run, trainer, 8.2, 2 * GIB)

    assert causes(diagnosed(tmp_path, ended)) == ["gpu-out-of-memory"]


def test_memory_that_passed_between_two_samples_may_have_filled_it(tmp_path: Path) -> None:
    def passing(run: ScriptedRun, trainer: Actor) -> None:
        refused_with(run, trainer, 10 * GIB)
        run.memory(trainer, "cudaMalloc", 8, 5, GIB, freed=5)

    assert causes(diagnosed(tmp_path, passing)) == ["gpu-out-of-memory"]


def test_without_the_driver_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(
        tmp_path, lambda run, trainer: refused_with(run, trainer, 10 * GIB), not_traced={"GPU": "no NVML"}
    )
    assert "gpu-memory-fragmentation" in {one.cause for one in diagnosis.not_evaluated}
