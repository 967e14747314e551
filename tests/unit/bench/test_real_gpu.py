"""The bench of a real GPU: what it refuses, what it reads from the command line, and how it scores."""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import pytest

from bench.agent import BenchError
from bench.incidents.step_score import StepScore
from bench.overhead import GOVERNED
from bench.real_gpu.__main__ import Result, _parse, _shortly, main, require_cuda, table
from bench.real_gpu.plan import LOOPS, Fault
from bench.real_gpu.score import DiagnosisSummary, Lengths, Marks, lengths, said, score_steps
from tests.unit.test_real_gpu import TRUTHS, recorded

MS = 1_000_000
STEPS = 100
MARKS = Marks(pid=1, unix_minus_mono_ns=0, marks_ns=[number * 20 * MS for number in range(STEPS + 1)])


def fake_torch(folder: Path, code: str) -> Path:
    """A Python whose module torch is this code."""
    (folder / "torch.py").write_text(code, encoding="utf-8")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return python


def test_without_pytorch_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no Python here has PyTorch"):
        require_cuda(None)
    with pytest.raises(BenchError, match="does not exist"):
        require_cuda(tmp_path / "python")


def test_pytorch_without_a_gpu_is_refused_with_its_own_reason(tmp_path: Path) -> None:
    python = fake_torch(tmp_path, "def zeros(*_, **__): raise RuntimeError('Found no NVIDIA driver on your system.')")
    with pytest.raises(
        BenchError, match="no PyTorch that can use a GPU: RuntimeError: Found no NVIDIA driver"
    ) as caught:
        require_cuda(python)
    assert "nvidia-smi" in caught.value.hint


def test_the_refusal_comes_before_anything_is_started(tmp_path: Path) -> None:
    python = fake_torch(tmp_path, "def zeros(*_, **__): raise RuntimeError('no driver')")
    with pytest.raises(BenchError):
        main(["item", "--python", str(python), "--keep", str(tmp_path / "kept")])
    assert not (tmp_path / "kept").exists()


def test_a_pytorch_with_a_gpu_is_named(tmp_path: Path) -> None:
    code = """
__version__ = "2.11"
def zeros(count, device): return [0] * count
class cuda:
    def get_device_name(number): return "H100"
"""
    assert require_cuda(fake_torch(tmp_path, code)) == "2.11 H100"


def test_all_loops_run_with_the_default_budgets_if_nothing_is_said(tmp_path: Path) -> None:
    options = _parse(["--python", sys.executable, "--keep", str(tmp_path)])
    assert options.loops == tuple(LOOPS)
    assert options.trace_options == tuple(GOVERNED["with the default budgets"])
    assert _parse(["item", "--no-budgets", "--python", sys.executable, "--keep", str(tmp_path)]).trace_options == ()


@pytest.mark.parametrize(("arguments", "said"), [(["itme"], "there is no loop itme"), ([], "holds recordings already")])
def test_what_cannot_be_done_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    (tmp_path / "item").mkdir()
    with pytest.raises(SystemExit):
        _parse([*arguments, "--python", sys.executable, "--keep", str(tmp_path)])
    assert said in capsys.readouterr().err


def test_only_whole_steps_outside_the_fault_and_the_profiler_are_timed() -> None:
    times = [number * 20 * MS for number in range(STEPS + 1)]
    slow = [at_ns + (500 * MS if at_ns > 1000 * MS else 0) for at_ns in times]  # one step of 520 ms
    marks = Marks(pid=1, unix_minus_mono_ns=0, marks_ns=slow, profiled_ns=slow[80:90])
    whole = [(10 * MS, slow[-1])]
    assert lengths(marks, whole).mean_ms > 20
    without = lengths(marks, whole, without=[(900 * MS, 1600 * MS)])
    assert (without.median_ms, without.mean_ms) == (20, 20)
    assert without.count < lengths(marks, whole).count < STEPS - 1 - 9


def test_no_step_in_an_interval_is_an_error() -> None:
    with pytest.raises(ValueError, match="no step"):
        lengths(MARKS, [(5 * MS, 15 * MS)])


def test_steps_and_causes_of_a_real_recording_are_scored(tmp_path: Path) -> None:
    truth = recorded("item").truth
    database = tmp_path / "run.db"
    database.write_bytes(lzma.decompress(TRUTHS["item"].with_name("item.db.xz").read_bytes()))
    marks = Marks(pid=truth.pid, unix_minus_mono_ns=0, marks_ns=truth.marks_ns.tolist())
    scored = score_steps(database, marks)
    assert scored is not None
    assert scored.is_exact
    assert scored.found == scored.true == truth.steps_inside
    half = Marks(pid=truth.pid, unix_minus_mono_ns=0, marks_ns=marks.marks_ns[::2])
    of_half = score_steps(database, half)
    assert of_half is not None
    assert not of_half.is_exact
    opinion = said(database, truth.pid)
    assert (opinion.causes, opinion.unexplained, opinion.wrong(LOOPS["item"])) == ([], 0, [])


def test_a_cause_that_cannot_be_right_is_shown_as_wrong() -> None:
    opinion = DiagnosisSummary(causes=["data-starvation", "lock-contention"], unexplained=1, verdict="host-bound")
    result = Result(
        loop="loader-pinned",
        fault=Fault.SLOW_ITEMS.value,
        untraced=Lengths(count=10, median_ms=20, mean_ms=20),
        traced=Lengths(count=10, median_ms=20.2, mean_ms=20.4),
        noise_percent=0.5,
        own_account_percent=1.1,
        agent_cpu_percent=4.0,
        start_cpu_percent=80.0,
        steps=StepScore(true=10, found=9, half=0, double=0),
        said=opinion,
        wrong=opinion.wrong(LOOPS["loader-pinned"]),
    )
    line = list(table([result]))[1]
    assert result.wrong == ["lock-contention"]
    assert not result.is_right
    for part in ("+1.0 / +2.0 %", "9/10!", "lock-contention WRONG", "1 unexplained", "[items 0.3 s slower]"):
        assert part in line


def test_why_a_loop_failed_is_said_without_its_traceback() -> None:
    text = "pid 7 ended before it was ready: Traceback (most recent call last):\n  File x\nModuleNotFoundError: none\n"
    assert _shortly(text) == "pid 7 ended before it was ready: ModuleNotFoundError: none"
    assert _shortly("there is no GPU: none") == "there is no GPU: none"


def test_every_loop_has_a_program_and_every_fault_a_loop() -> None:
    source = (Path(__file__).parents[3] / "bench" / "real_gpu" / "loops.py").read_text(encoding="utf-8")
    assert all(f'"{loop.program}": lambda' in source for loop in LOOPS.values())
    assert {loop.fault for loop in LOOPS.values()} == set(Fault)
    assert all(loop.causes for loop in LOOPS.values() if loop.fault is not Fault.NONE)
