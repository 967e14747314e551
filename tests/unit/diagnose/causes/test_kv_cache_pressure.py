"""kv-cache-pressure: a server on a full GPU whose cache code retries; other code, or a GPU with room, is not it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun, Step
from tests.unit.diagnose.causes.golden import LENGTH_S, QUIET_S, causes, diagnosed
from tests.unit.diagnose.causes.requests import GIB, retried, sampled

CACHE = (("/usr/lib/python3/site-packages/transformers/cache_utils.py", 442, "update"), ("/srv/serve.py", 17, "decode"))
OTHER = (("/srv/serve.py", 30, "embed"),)
FULL = 15 * GIB + 7 * GIB // 8


def serving(
    run: ScriptedRun,
    trainer: Actor,
    *,
    lines: tuple[tuple[str, int, str], ...] = CACHE,
    used: int = FULL,
    cost_ms: float = 9,
) -> None:
    """Requests come over the network; every third allocation of the cache needs a flush."""
    sampled(run, LENGTH_S, used)
    step = Step(idle_ms=3.5 + cost_ms, idle={"sleep": 3.0, "run": 0.5 + cost_ms})
    for index, (begin, _, _) in enumerate(run.train(trainer, QUIET_S, LENGTH_S, step)):
        run.off_cpu(trainer, begin, begin + 0.003, "sleep", waker="network")
        if (index % 3 == 0 and cost_ms) or index in (10, 20, 30):
            retried(run, trainer, begin + 0.003, GIB >> 1, stack=run.stack(lines))


def test_retries_of_cache_code_in_a_full_server_are_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: serving(run, trainer, cost_ms=3))
    assert causes(diagnosis) == ["kv-cache-pressure"]
    incident = diagnosis.incidents[0]
    assert incident.lost_ratio == pytest.approx(3 / 9.55, rel=0.05)
    assert "serves with 99% of the GPU's memory in use" in incident.summary
    assert incident.line is not None
    assert incident.line.file == "/srv/serve.py"


def test_without_lost_time_it_is_still_told_once(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: serving(run, trainer, cost_ms=0))) == ["kv-cache-pressure"]


def test_retries_of_other_code_are_the_allocators(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: serving(run, trainer, lines=OTHER, cost_ms=0))
    assert causes(diagnosis) == ["allocator-retry"]


def test_a_gpu_that_was_not_full_in_the_samples_proves_no_pressure(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: serving(run, trainer, used=15 * GIB, cost_ms=0))
    assert "kv-cache-pressure" not in causes(diagnosis)


def test_a_trainer_has_no_such_cache(tmp_path: Path) -> None:
    def training(run: ScriptedRun, trainer: Actor) -> None:
        sampled(run, LENGTH_S, FULL)
        for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step())[::100]:
            retried(run, trainer, begin, 1 * GIB, stack=run.stack(CACHE))

    assert causes(diagnosed(tmp_path, training)) == ["allocator-retry"]


def churning(run: ScriptedRun, trainer: Actor, used: int, lines: tuple[tuple[str, int, str], ...]) -> None:
    """Requests come over the network; then each step spends 3 ms more in one allocation."""
    sampled(run, LENGTH_S, used)
    calls = {"cudaLaunchKernel": (80.0, 0.005), "cudaMalloc": (1.0, 3.0), "cudaStreamSynchronize": (1.0, 5.0)}
    step = Step(idle_ms=6.5, idle={"sleep": 3.0, "run": 3.5})
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, step, calls=calls):
        run.off_cpu(trainer, begin, begin + 0.003, "sleep", waker="network")
        run.call(trainer, "cudaMalloc", begin + 0.003, 3, arg0=1 << 20, stack_hash=run.stack(lines))


def test_allocations_of_cache_code_that_slow_a_full_server_are_named(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: churning(run, trainer, FULL, CACHE))
    assert causes(diagnosis) == ["kv-cache-pressure"]
    assert diagnosis.incidents[0].lost_ratio == pytest.approx(3 / 9.55, rel=0.05)


@pytest.mark.parametrize(("used", "lines"), [(12 * GIB, CACHE), (FULL, OTHER)])
def test_with_room_or_for_other_code_they_are_churn(
    tmp_path: Path, used: int, lines: tuple[tuple[str, int, str], ...]
) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: churning(run, trainer, used, lines))
    assert causes(diagnosis) == ["allocation-churn"]


def test_without_intervals_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, serving, not_traced={"offcpu": "--offcpu=false"})
    assert "kv-cache-pressure" in {one.cause for one in diagnosis.not_evaluated}
