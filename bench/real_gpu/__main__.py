"""What tracing costs PyTorch programs on a real GPU, and whether steps and verdicts are right.

Each loop runs by itself: alone, traced, alone again. Half-way through the traced time its fault begins, if it has one,
and ends before tracing does. Step times are the loop's own marks, the time of the fault and of the first two traced
seconds left out; `noise` is by how much the untraced steps before and after differ. Recordings, marks and profiles stay
in --keep.

Run as root: python -m bench.real_gpu [LOOP ...] [--python PATH] [--seconds S] [--no-budgets] [--profile]
[--keep FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.agent import Agent, BenchError, launched, require_quiet_kernel
from bench.incidents.step_score import StepScore
from bench.overhead import GOVERNED, SETTLE_SECONDS
from bench.real_gpu import loops
from bench.real_gpu.plan import LOOPS, Fault, Loop
from bench.real_gpu.score import DiagnosisSummary, Interval, Lengths, lengths, mean_of, read_marks, said, score_steps
from ingero.demo.faults.cpu import CpuHog
from ingero.demo.faults.model import Workload
from ingero.demo.machine import python_with_framework
from ingero.demo.workloads.program import Program, WorkloadError
from ingero.errors import IngeroError

_ASK_TORCH = "import torch; torch.zeros(1, device='cuda'); print(torch.__version__, torch.cuda.get_device_name(0))"
_ANSWER_S = 120.0  # a first import of PyTorch from a cold disk
_PYTHON_VARIABLES = ("PYTHONHOME", "PYTHONPATH")  # of the bench's Python, not of the loop's
_PROFILE_S = 60.0  # until a profile has been written
_END_S = 60.0  # a step of a loop whose data are slow, then the marks
_AFTERMATH_NS = 1_000_000_000  # batches that a data loader has begun while its items were slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for. seconds: of the traced time range, and of both untraced ones together."""

    loops: tuple[str, ...]
    python: Path | None
    seconds: float
    trace_options: tuple[str, ...]
    profile: bool
    keep: Path
    json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One loop. own_account: of the traced thread's time, by the agent. agent_cpu: of a core, its start left out."""

    loop: str
    fault: str
    untraced: Lengths
    traced: Lengths
    noise_percent: float
    own_account_percent: float
    agent_cpu_percent: float
    start_cpu_percent: float
    steps: StepScore | None
    said: DiagnosisSummary
    wrong: list[str]

    @property
    def is_right(self) -> bool:
        """Whether no wrong cause is named, and the steps found are the program's, none left out."""
        return not self.wrong and (self.steps is None or (self.steps.is_exact and self.steps.found == self.steps.true))

    @property
    def added_percent(self) -> tuple[float, float]:
        """By how much traced steps are longer, by the median and by the mean."""
        return (
            100 * (self.traced.median_ms / self.untraced.median_ms - 1),
            100 * (self.traced.mean_ms / self.untraced.mean_ms - 1),
        )


def require_cuda(python: Path | None) -> str:
    """Says which PyTorch and which GPU a Python has.

    Raises:
        BenchError: it has no PyTorch, or PyTorch cannot use a GPU; with PyTorch's own reason.
    """
    if python is None or not python.exists():
        raise BenchError(
            f"no PyTorch: {python} does not exist" if python else "no Python here has PyTorch",
            hint="python -m bench.real_gpu --python PATH, of an environment with a CUDA PyTorch",
        )
    done = subprocess.run(
        [python, "-c", _ASK_TORCH],
        env=_loop_environment(),
        capture_output=True,
        text=True,
        timeout=_ANSWER_S,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise BenchError(
            f"{python} has no PyTorch that can use a GPU: {reason[:300]}",
            hint="run it where nvidia-smi shows a GPU; without one: python -m bench.overhead (simulated GPU)",
        )
    return done.stdout.strip()


def _loop_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _PYTHON_VARIABLES}


@contextmanager
def running(python: Path, program: str, folder: Path) -> Iterator[Program]:
    """A loop that has done its first steps; its files are in `folder`.

    Raises:
        WorkloadError: it ended before.
    """
    folder.mkdir(parents=True)
    command = [str(python), loops.__file__, program, "--folder", str(folder)]
    with Program(command, environment=_loop_environment()) as started:
        started.wait_for("ready")
        yield started


@contextmanager
def fault_in_effect(loop: Loop, program: Program, folder: Path) -> Iterator[None]:
    """What disturbs the loop. folder: of whoever looks for the file `fault`."""
    with ExitStack() as stack:
        if loop.fault is Fault.BUSY_CPU:
            hog = CpuHog(per_cpu=0, cpus=os.sched_getaffinity(program.pid))
            stack.enter_context(hog.apply(Workload(pid=program.pid, knobs=folder, host_knobs=folder)))
        (folder / "fault").touch()
        try:
            yield
        finally:
            (folder / "fault").unlink()


def confine(pid: int) -> None:
    """Leaves a process one CPU; the last, as most machines have their interrupts on the first ones."""
    cpu = max(os.sched_getaffinity(pid))
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cpu})


def seconds_of(agent: Agent, seconds: float) -> list[dict[str, Any]]:
    """What an agent says in a time range."""
    end = time.monotonic() + seconds
    said_so_far = []
    while time.monotonic() < end:
        said_so_far.append(agent.wait_for("second"))
    return said_so_far


def alone(seconds: float) -> Interval:
    """A time range without an agent."""
    begin_ns = time.monotonic_ns()
    time.sleep(seconds)
    return begin_ns, time.monotonic_ns()


def write_profile(agent: Agent, folder: Path) -> None:
    """Has the loop's profiler record a few steps while it is traced.

    Raises:
        BenchError: there is no profile after a minute.
    """
    (folder / "profile").touch()
    end = time.monotonic() + _PROFILE_S
    while not (folder / "kineto.json").exists():
        if time.monotonic() > end:
            raise BenchError(f"the profiler wrote no {folder / 'kineto.json'} in {_PROFILE_S:.0f} s")
        agent.wait_for("second")


def end_of(program: Program, folder: Path) -> None:
    """Ends a loop in good order.

    Raises:
        BenchError: it does not end.
        WorkloadError: it failed.
    """
    (folder / "stop").touch()
    try:
        program.process.wait(_END_S)
    except subprocess.TimeoutExpired:
        raise BenchError(f"the loop in {folder} did not end within {_END_S:.0f} s") from None
    program.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A traced time range: when (monotonic ns), when its fault was, and what the agent said of its seconds."""

    interval: Interval
    faults: list[Interval]
    start: list[dict[str, Any]]
    settled: list[dict[str, Any]]


def traced(loop: Loop, program: Program, folders: Sequence[Path], options: Options) -> Traced:
    """Records the loop. folders: of the loop, and of who looks for the fault."""
    faults: list[Interval] = []
    with launched(
        Agent, folders[0] / "run.db", pids=[program.pid], options=options.trace_options, environment={}
    ) as agent:
        start = seconds_of(agent, SETTLE_SECONDS)
        begin_ns = time.monotonic_ns()
        settled = seconds_of(agent, options.seconds * 0.4)
        fault_ns = time.monotonic_ns()
        if loop.fault is Fault.NONE:
            settled += seconds_of(agent, options.seconds * 0.4)
        else:
            with fault_in_effect(loop, program, folders[-1]):
                settled += seconds_of(agent, options.seconds * 0.4)
            faults.append((fault_ns, time.monotonic_ns() + _AFTERMATH_NS))
        settled += seconds_of(agent, options.seconds * 0.2)
        end_ns = time.monotonic_ns()
        if options.profile:
            write_profile(agent, folders[0])
        agent.stop()
    return Traced(interval=(begin_ns, end_ns), faults=faults, start=start, settled=settled)


def measure(name: str, options: Options) -> Result:
    """One loop: alone, traced, alone again."""
    assert options.python is not None, "require_cuda has refused"
    loop, folder = LOOPS[name], options.keep / name
    with ExitStack() as stack:
        program = stack.enter_context(running(options.python, loop.program, folder))
        folders = [folder]
        if loop.fault is Fault.SHARED_GPU:
            folders.append(options.keep / f"{name}-neighbor")
            stack.enter_context(running(options.python, "neighbor", folders[-1]))
        if loop.fault is Fault.BUSY_CPU:
            confine(program.pid)
        before = alone(options.seconds / 2)
        try:
            found = traced(loop, program, folders, options)
        except BenchError as error:  # an agent ends with the last process that it traces
            if program.process.poll() is None:
                raise
            raise WorkloadError(f"the loop ended by itself: {''.join(program.errors)}") from error
        after = alone(options.seconds / 2)
        end_of(program, folder)
    marks = read_marks(folder)
    opinion = said(folder / "run.db", marks.pid)
    first, last = lengths(marks, [before]), lengths(marks, [after])
    return Result(
        loop=name,
        fault=loop.fault.value,
        untraced=lengths(marks, [before, after]),
        traced=lengths(marks, [found.interval], without=found.faults),
        noise_percent=100 * (last.median_ms / first.median_ms - 1),
        own_account_percent=mean_of(found.settled, "overhead_ratio"),
        agent_cpu_percent=mean_of(found.settled, "agent_cpu_ratio"),
        start_cpu_percent=mean_of(found.start, "agent_cpu_ratio"),
        steps=score_steps(folder / "run.db", marks),
        said=opinion,
        wrong=opinion.wrong(loop),
    )


def table(results: Sequence[Result]) -> Iterator[str]:
    """The results for people."""
    yield (
        f"{'loop':17}{'untraced ms':>18}{'traced ms':>18}{'added':>18}{'noise':>8}{'own':>7}{'agent':>8}{'start':>8}"
        f"{'steps':>16}  causes"
    )
    for result in results:
        by_median, by_mean = result.added_percent
        steps = result.steps
        is_exact = steps is None or (steps.is_exact and steps.found == steps.true)
        counts = "none" if steps is None else f"{steps.found}/{steps.true}"
        causes = ", ".join(f"{cause}{' WRONG' if cause in result.wrong else ''}" for cause in result.said.causes)
        causes += f"{', ' if causes else ''}{result.said.unexplained} unexplained" if result.said.unexplained else ""
        yield (
            f"{result.loop:17}{_both(result.untraced):>18}{_both(result.traced):>18}"
            f"{f'{by_median:+.1f} / {by_mean:+.1f} %':>18}{result.noise_percent:+7.1f}%"
            f"{result.own_account_percent:6.1f}%{result.agent_cpu_percent:7.1f}%{result.start_cpu_percent:7.0f}%"
            f"{counts:>16}{' ' if is_exact else '!'} {causes or '-'}{f'  [{result.fault}]' if result.fault else ''}"
        )
        yield f"{'':17}{result.said.verdict}"


def _both(times: Lengths) -> str:
    return f"{times.median_ms:.2f} / {times.mean_ms:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, keep; 1 if a step or a cause is wrong, or a loop failed."""
    options = _parse(arguments)
    what = require_cuda(options.python)
    require_quiet_kernel()
    print(f"PyTorch {what}; recordings are kept in {options.keep}", file=sys.stderr, flush=True)
    results, failed = [], False
    for name in options.loops:
        try:
            results.append(measure(name, options))
        except (WorkloadError, BenchError) as error:  # one loop without its library is no reason to lose the others
            failed = True
            print(f"{name}: {_shortly(str(error))}", file=sys.stderr, flush=True)
            continue
        if not options.json:
            print("\n".join(list(table(results))[-2:]), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
    else:
        print("\n".join(table(results)))
    return int(failed or not all(result.is_right for result in results))


def _shortly(text: str) -> str:
    """What failed and why, without the traceback between them."""
    lines = text.strip().splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0].partition(': ')[0]}: {lines[-1]}"


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("loop", nargs="*", help=f"of {', '.join(LOOPS)}; all, if none is named")
    parser.add_argument("--python", type=Path, help="a Python that has PyTorch (default: the first one found)")
    parser.add_argument("--seconds", type=float, default=20, help="of the traced time, and of both untraced ones (20)")
    parser.add_argument("--no-budgets", action="store_true", help="nothing limits what tracing costs")
    parser.add_argument("--profile", action="store_true", help="PyTorch's profiler records 12 of the traced steps, too")
    parser.add_argument("--keep", type=Path, default=Path("build/real_gpu"), help="must not exist, or be empty")
    parser.add_argument("--json", action="store_true", help="one JSON array instead of text")
    found = parser.parse_args(arguments)
    if unknown := sorted(set(found.loop) - set(LOOPS)):
        parser.error(f"there is no loop {', '.join(unknown)}; there are {', '.join(LOOPS)}")
    if found.keep.exists() and any(found.keep.iterdir()):
        parser.error(f"{found.keep} holds recordings already: name another folder with --keep")
    return Options(
        loops=tuple(found.loop or LOOPS),
        python=found.python or python_with_framework(),
        seconds=found.seconds,
        trace_options=() if found.no_budgets else tuple(GOVERNED["with the default budgets"]),
        profile=found.profile,
        keep=found.keep,
        json=found.json,
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except IngeroError as error:
        sys.exit(f"{error}\n  try: {error.hint}" if error.hint else str(error))
