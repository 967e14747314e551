"""Two recordings compared by their steps: what changed, what is noise, what cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ingero.demo.scene import BEGIN_NS, ScriptedRun, Step
from ingero.demo.step_scene import RepeatedStep, add_steps
from ingero.diagnose.comparison.change_verdict import Verdict
from ingero.diagnose.comparison.compare import Comparison, compare
from ingero.serve.text.comparison_text import comparison_json, comparison_lines
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.store.writing import tables
from tests.unit.profiled_recording import WINDOW, imported

_STEADY = (20.0, 20.1, 19.9, 20.0, 20.05)


def _recording(
    path: Path, steps: Sequence[float], *, busy: float = 15, launches: int = 100, kernel: str = "gemm"
) -> Path:
    """Steps of these lengths in ms, with a kernel of `busy` ms each."""
    with imported(path) as recording:
        program = recording.program()
        at = 0.0
        for length in steps:
            program.step(at, at + length, launches=launches)
            program.launch(at, runs=(at, at + busy), kernel=kernel)
            at += length
    return path


def _compared(before: Path, after: Path) -> Comparison:
    with open_reader(before) as first, open_reader(after) as second:
        return compare(first, WINDOW, second, WINDOW)


def test_longer_steps_of_the_same_work_are_worse_and_the_gpus_part_in_them_is_told(tmp_path: Path) -> None:
    before = _recording(tmp_path / "a.db", _STEADY)
    found = _compared(before, _recording(tmp_path / "b.db", [length * 1.15 for length in _STEADY]))
    assert found.verdict is Verdict.WORSE
    assert found.change_ratio == pytest.approx(0.15)
    (step,) = found.steps
    assert (step.before, step.after) == (5, 5)
    assert (step.before_busy_ns, step.after_busy_ns) == (15e6, 15e6)
    assert step.after_idle_ns == pytest.approx(20.01e6 * 1.15 - 15e6)


def test_a_warm_up_and_one_slow_step_hide_no_improvement(tmp_path: Path) -> None:
    before = _recording(tmp_path / "a.db", [17, 17.5, 17.6, 18.1, 17.7, 16.4])
    after = _recording(tmp_path / "b.db", [17.3, 12.4, 12.7, 12.6, 16.4, 11.6], busy=10, launches=102)
    found = _compared(before, after)
    assert found.verdict is Verdict.BETTER
    assert found.steps[0].median_change_ratio == pytest.approx(12.65 / 17.55 - 1)


def test_a_change_within_the_noise_of_the_steps_is_none(tmp_path: Path) -> None:
    before = _recording(tmp_path / "a.db", [17, 20, 23, 26, 16])
    assert _compared(before, _recording(tmp_path / "b.db", [18, 22, 24, 25, 17])).verdict is Verdict.SAME


@pytest.mark.parametrize(("launches", "kernel"), [(101, "conv"), (110, "gemm")])
def test_other_kernels_or_other_counts_of_launches_are_another_program(
    tmp_path: Path, launches: int, kernel: str
) -> None:
    before = _recording(tmp_path / "a.db", _STEADY)
    after = _recording(tmp_path / "b.db", _STEADY, launches=launches, kernel=kernel)
    found = _compared(before, after)
    assert (found.verdict, found.steps) == (Verdict.UNKNOWN, ())
    assert next(iter(comparison_lines(found))).startswith("No verdict: no step type with at least three steps in both")


def test_two_steps_are_too_few(tmp_path: Path) -> None:
    before = _recording(tmp_path / "a.db", _STEADY)
    found = _compared(before, _recording(tmp_path / "b.db", [30, 30]))
    assert (found.verdict, found.steps[0].verdict) == (Verdict.UNKNOWN, Verdict.UNKNOWN)


def test_steps_of_a_live_recording_are_compared_without_the_gpus_part(tmp_path: Path) -> None:
    for name, length in (("a", 20), ("b", 30)):
        with ScriptedRun(tmp_path / f"{name}.db", seconds=10) as run:
            actor = run.process(700, "python")
            for number in range(4):
                at = run.at(number)
                known = {"process": actor.number, "pid": 700, "tid": 700, "step_type": run.text("12 enqueues")}
                run.append(tables.STEPS, **known, start_ns=at, end_ns=at + length * 1_000_000)
    found = _compared(tmp_path / "a.db", tmp_path / "b.db")
    assert (found.verdict, found.change_ratio) == (Verdict.WORSE, pytest.approx(0.5))
    assert (found.steps[0].before_busy_ns, found.profiles) == (None, ())


def test_the_text_shows_means_medians_busy_and_idle_and_json_holds_the_same(tmp_path: Path) -> None:
    before = _recording(tmp_path / "a.db", _STEADY)
    found = _compared(before, _recording(tmp_path / "b.db", [length * 1.15 for length in _STEADY]))
    text = "\n".join(comparison_lines(found))
    assert "GPU 0: 100 enqueues" in text
    assert "20.0 ms > 23.0 ms" in text
    assert "79% > 70%" in text
    steps = comparison_json(found)["steps"]
    assert isinstance(steps, list)
    assert steps[0]["verdict"] == "worse"


def test_a_comparison_says_what_its_times_are_of(tmp_path: Path) -> None:
    paths = [tmp_path / "before.db", tmp_path / "after.db"]
    for path, host_ms in zip(paths, (6.0, 9.0), strict=True):
        with ScriptedRun(path, seconds=10) as run:
            trainer = run.process(100, "python")
            add_steps(run, trainer, 0, 10, RepeatedStep(host_ms=host_ms, blocked={"copy": 0.1}, noise=0))
            run.train(run.process(200, "synced"), 0, 10, Step(busy_ms=6))
    whole = Window(begin_ns=BEGIN_NS, end_ns=BEGIN_NS + 10 * 10**9 + 1)
    with open_reader(paths[0]) as before, open_reader(paths[1]) as after:
        found = compare(before, whole, after, whole)
    changes = {one.interval: one.change_ratio for one in found.classes}
    assert changes == {"step": pytest.approx(3.0 / 6.1), "sync interval": pytest.approx(0.0, abs=0.001)}
    lines = list(comparison_lines(found))
    assert {line.split("  ")[0] for line in lines if " of  " in line} == {"steps of", "sync intervals of"}
