"""Scripted stalls, each with the label that a diagnosis has to find: for assistants, demos and tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingero.demo.scene import Actor, ScriptedRun, Step
from ingero.ops import HostOp
from ingero.store.writing import tables

QUIET_S, LENGTH_S = 6.0, 12.0
TRAINER = 100
_RETURN_DELAY_MS = 2.0
_CODE = "/srv/train/train.py"
_THERMAL = 0x20  # nvmlClocksEventReasonSwThermalSlowdown (nvml.h)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One stall from QUIET_S on. culprit: a pid, 0: the affected process; line: a line of _CODE, 0: unknown."""

    title: str
    cause: str
    play: Callable[[ScriptedRun, Actor], None]
    culprit: int = 0
    line: int = 0


def record(scenario: Scenario, path: Path) -> None:
    """Writes the recording: a healthy time range, then the stall."""
    with ScriptedRun(path, seconds=LENGTH_S) as run:
        trainer = run.process(TRAINER, "python", cmdline="python train.py")
        run.train(trainer, 0, QUIET_S, Step(), calls=_CALLS)
        scenario.play(run, trainer)


def _seconds() -> range:
    return range(int(QUIET_S), int(LENGTH_S))


def _cpu_contention(run: ScriptedRun, trainer: Actor, pid: int, name: str) -> None:
    """Another process has the CPU when the GPU is done."""
    steps = run.train(
        trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=0.05 + _RETURN_DELAY_MS, sync={"runq": _RETURN_DELAY_MS})
    )
    for second in _seconds():
        run.culprit(
            trainer, pid, name, second, _RETURN_DELAY_MS * sum(int(end) == second for _, _, end in steps), switches=500
        )


def _hog(run: ScriptedRun, trainer: Actor) -> None:
    _cpu_contention(run, trainer, 900, "hog")


def _own_workers(run: ScriptedRun, trainer: Actor) -> None:
    worker = run.process(101, "pt_data_worker", parent=trainer)
    _cpu_contention(run, trainer, worker.pid, worker.name)


def _quota(run: ScriptedRun, trainer: Actor) -> None:
    run.train(trainer, QUIET_S, LENGTH_S, Step(return_delay_ms=3, sync={"throttled": 2.95}))


def _slow_worker(run: ScriptedRun, trainer: Actor) -> None:
    worker = run.process(101, "pt_data_worker", parent=trainer)
    for begin, _, _ in run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=20.5, idle={"sleep": 20})):
        run.off_cpu(trainer, begin, begin + 0.020, "sleep", waker=worker)
        run.off_cpu(worker, begin + 0.001, begin + 0.019, "io", waker="block")


def _hot_gpu(run: ScriptedRun, trainer: Actor) -> None:
    run.train(trainer, QUIET_S, LENGTH_S, Step(busy_ms=12))
    for second in range(1, int(LENGTH_S) + 1):
        is_hot = second > QUIET_S
        run.gpu(second - 0.01, mhz=990 if is_hot else 1980, reasons=_THERMAL if is_hot else 0)


def _debugger(run: ScriptedRun, trainer: Actor) -> None:
    stop_ms = 2000.0
    run.process(77, "gdb")
    run.host_event(HostOp.STOP_SIGNAL, QUIET_S, actor=trainer, arg1=77, arg2=19)
    run.train(trainer, QUIET_S, QUIET_S + 0.001, Step(busy_ms=6 + stop_ms, sync={"stopped": stop_ms}))
    run.train(trainer, QUIET_S + stop_ms / 1e3 + 0.007, LENGTH_S, Step())


def _interpreter_lock(run: ScriptedRun, trainer: Actor) -> None:
    holder = Actor(number=trainer.number, pid=105, name="logger")
    steps = run.train(trainer, QUIET_S, LENGTH_S, Step(idle_ms=18, idle={"sleep": 17.5}))
    for begin, _, _ in steps:
        now = begin
        for _nap in range(3):
            run.off_cpu(trainer, now, now + 0.00506, "sleep", waker="timer")
            now += 0.00516
        run.off_cpu(trainer, now, now + 0.002, "sleep", waker=holder)
        run.off_cpu(trainer, now + 0.0021, now + 0.0024, "runq", tid=holder.pid, culprit=(1, "x"))


def _slow_call(name: str, ms: float, line: int, step: Step) -> Callable[[ScriptedRun, Actor], None]:
    """A scenario in which each step makes one call, from one line of the workload, that takes `ms`."""

    def play(run: ScriptedRun, trainer: Actor) -> None:
        _stack(run, line)
        calls = {"cudaLaunchKernel": (80.0, 0.005), name: (1.0, ms), "cudaStreamSynchronize": (1.0, 5.0)}
        run.train(trainer, QUIET_S, LENGTH_S, step, calls=calls)
        for second in _seconds():
            run.call(trainer, name, second + 0.5, ms, stack_hash=line)

    return play


def _stack(run: ScriptedRun, line: int) -> None:
    frames = [
        {"symbol": "at::native::call", "file": "libtorch_cuda.so"},
        {"py_file": "/usr/lib/python3.11/site-packages/torch/_tensor.py", "py_line": 900, "py_func": "to"},
        {"py_file": _CODE, "py_line": line, "py_func": "train_step"},
    ]
    run.append(tables.STACKS, hash=line, ips="[]", frames=json.dumps(frames), note="")


def _slow_launches(run: ScriptedRun, trainer: Actor) -> None:
    _stack(run, 58)
    calls = {"cudaLaunchKernel": (80.0, 0.1), "cudaStreamSynchronize": (1.0, 0.1)}
    run.train(trainer, QUIET_S, LENGTH_S, Step(launch_ms=8.9, busy_ms=9.0), calls=calls)
    for second in _seconds():
        run.call(trainer, "cudaLaunchKernel", second + 0.5, 0.1, stack_hash=58)


_CALLS = {"cudaLaunchKernel": (80.0, 0.005), "cudaMemcpyAsync": (2.0, 0.01), "cudaStreamSynchronize": (1.0, 5.0)}

SCENARIOS: Mapping[str, Scenario] = {
    "cpu-hog": Scenario(title="another process takes the CPU", cause="cpu-contention", culprit=900, play=_hog),
    "own-workers": Scenario(
        title="the job's own data workers take the CPU", cause="self-oversubscription", culprit=101, play=_own_workers
    ),
    "cpu-quota": Scenario(title="the CPU quota of the container is used up", cause="cpu-throttled", play=_quota),
    "slow-disk": Scenario(
        title="the data worker is in I/O wait", cause="data-starvation", culprit=101, play=_slow_worker
    ),
    "hot-gpu": Scenario(title="the GPU lowers its clock because it is hot", cause="gpu-throttled", play=_hot_gpu),
    "debugger": Scenario(title="a debugger stops the process", cause="stopped", culprit=77, play=_debugger),
    "interpreter-lock": Scenario(
        title="another thread holds the interpreter lock", cause="gil", culprit=100, play=_interpreter_lock
    ),
    "allocations": Scenario(
        title="memory is allocated in every step",
        cause="allocation-churn",
        line=42,
        play=_slow_call("cudaMalloc", 3.0, 42, Step(idle_ms=3.5)),
    ),
    "recompilation": Scenario(
        title="code is compiled and loaded in the middle of the run",
        cause="recompilation",
        line=77,
        play=_slow_call("cuModuleLoadData", 4.0, 77, Step(idle_ms=4.5)),
    ),
    "slow-launches": Scenario(
        title="launches take so long that the GPU waits", cause="launch-bound", line=58, play=_slow_launches
    ),
}
