"""gpu-memory-leak: one line holds more in each piece of the window; a cache that fills and stays is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ingero.demo.scene import Actor, ScriptedRun
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Diagnosis, Severity
from ingero.store.reader import open_reader
from ingero.store.records import Window
from tests.unit.diagnose.causes.golden import causes

LENGTH_S = 120
BLOCK = 2 << 20
LINE = ("/srv/train.py", 42, "step")


def diagnosed(
    folder: Path,
    script: Callable[[ScriptedRun, Actor], None],
    *,
    seconds: int = LENGTH_S,
    not_traced: dict[str, str] | None = None,
) -> Diagnosis:
    """Of two minutes unless told."""
    with ScriptedRun(folder / "leak.db", seconds=seconds, not_traced=not_traced) as run:
        trainer = run.process(100, "python")
        script(run, trainer)
        for second in range(seconds):
            run.gpu(second + 0.5, used_bytes=12 << 30, total_bytes=16 << 30, processes=[(100, 12 << 30)])
        window = Window(begin_ns=run.at(0), end_ns=run.at(seconds))
    with open_reader(folder / "leak.db") as reader:
        return diagnose(reader, window)


def leaking(run: ScriptedRun, trainer: Actor, *, freed: int = 0, unpaired: int = 0, seconds: int = LENGTH_S) -> None:
    """A model that is loaded at first, and one block more each second from then on."""
    model = run.stack([("/srv/model.py", 7, "load")])
    leak = run.stack([("/usr/lib/python3/site-packages/torch/nn.py", 3, "forward"), LINE])
    run.memory(trainer, "cudaMalloc", 0, 1000, BLOCK, stack=model)
    for second in range(1, seconds):
        run.memory(trainer, "cudaMalloc", second, 1 + freed, BLOCK, freed=freed, stack=leak, unpaired=unpaired * second)


def test_a_line_that_gives_nothing_back_is_named_with_its_rate(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, leaking)
    assert causes(diagnosis) == ["gpu-memory-leak"]
    incident = diagnosis.incidents[0]
    assert incident.line is not None
    assert (incident.line.file, incident.line.line, incident.line.function) == LINE
    assert incident.evidence["bytes per minute"] == pytest.approx(60 * BLOCK, rel=0.03)
    assert incident.evidence["time until full (ns)"] == pytest.approx((4 << 30) / BLOCK * 1e9, rel=0.03)
    assert incident.severity is Severity.HIGH
    assert "120 MiB more GPU memory each minute" in incident.summary


def test_a_line_that_gives_most_back_is_not_named(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: leaking(run, trainer, freed=3))) == []


def test_a_cache_that_fills_and_stays_flat_is_none(tmp_path: Path) -> None:
    def warm_up(run: ScriptedRun, trainer: Actor) -> None:
        cache = run.stack([LINE])
        for second in range(60):
            run.memory(trainer, "cudaMalloc", second, 8, BLOCK, stack=cache)
        run.memory(trainer, "cudaMalloc", 100, 1, BLOCK, stack=cache)

    assert causes(diagnosed(tmp_path, warm_up)) == []


def test_growth_that_becomes_less_and_less_is_none(tmp_path: Path) -> None:
    def filling(run: ScriptedRun, trainer: Actor) -> None:
        cache = run.stack([LINE])
        for second in range(LENGTH_S):
            run.memory(trainer, "cudaMalloc", second, 60 // (1 + second // 8), BLOCK, stack=cache)

    assert causes(diagnosed(tmp_path, filling)) == []


def test_a_model_that_is_being_loaded_when_the_recording_ends_is_none(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, lambda run, trainer: leaking(run, trainer, seconds=30), seconds=30)
    assert causes(diagnosis) == []


def test_growth_that_missed_frees_may_explain_is_none(tmp_path: Path) -> None:
    assert causes(diagnosed(tmp_path, lambda run, trainer: leaking(run, trainer, unpaired=1))) == []


def test_pinned_memory_of_the_host_is_left_out(tmp_path: Path) -> None:
    def pinned(run: ScriptedRun, trainer: Actor) -> None:
        for second in range(LENGTH_S):
            run.memory(trainer, "cudaHostAlloc", second, 4, BLOCK, stack=run.stack([LINE]))

    assert causes(diagnosed(tmp_path, pinned)) == []


def test_without_live_memory_it_is_not_evaluated(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, leaking, not_traced={"allocations": "entry probes only"})
    assert causes(diagnosis) == []
    assert "gpu-memory-leak" in {one.cause for one in diagnosis.not_evaluated}
