"""Runs a scenario live: a training loop on a GPU, a recorder beside it, and faults to switch on."""

from __future__ import annotations

import abc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from ingero.demo.faults import Fault, Workload
from ingero.demo.workloads.host_knobs import HostKnobs
from ingero.demo.workloads.program import Program, module_environment
from ingero.errors import IngeroError
from ingero.program import command
from ingero.store.records import Window

LIFE_S = 120  # of a workload whose demo was killed
_POLL_S = 0.5

Watcher = Callable[[Path, int], None]


class RecorderFailedError(IngeroError):
    """`ingero trace` ended with an error, which it has printed."""

    def __init__(self) -> None:
        super().__init__(
            "the recorder failed, and gave the reason above",
            hint=f"{command('check')}, or: {command('demo', '--no-gpu')}",
        )


class LiveRun(abc.ABC):
    """The workloads and the recorder of one scenario; a context manager that ends all of them.

    say: prints what happens. watch_recording: called every half second with the recording and the watched pid.
    python: the interpreter that runs the workload on a real GPU.
    """

    def __init__(self, folder: Path, *, say: Callable[[str], None], watch_recording: Watcher, python: Path) -> None:
        self.python = python
        self.recording = folder / "demo.db"
        self.knobs, self.host_knobs = folder / "gpu.knobs", folder / "host.knobs"
        self._gate = folder / "gate"
        self._say, self._watch_recording = say, watch_recording
        self._stack = ExitStack()
        self._recorder: subprocess.Popen[str] | None = None
        self._main: Program | None = None
        self.fault: Window | None = None  # when one was in effect

    def __enter__(self) -> LiveRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # What differs between a simulated GPU and a real one

    @abc.abstractmethod
    def start(self, *, gate: Path | None, copied_bytes: int) -> Program:
        """Starts a training loop; with a gate it waits for that file before its first call.

        copied_bytes: size of each batch, copied with calls that wait; 0: small batches, copied without waiting.
        """

    def driver_environment(self) -> dict[str, str]:
        """The variables with which the recorder finds the driver of the GPU."""
        return {}

    @abc.abstractmethod
    def slow_copies(self) -> AbstractContextManager[None]:
        """Makes copies to the GPU take a large part of each step."""

    @abc.abstractmethod
    def slow_first_use(self) -> AbstractContextManager[None]:
        """Makes the first launch of a kernel slow, as when its code has to be loaded."""

    # What is the same on both

    def train(self, *, is_gated: bool = False, copied_bytes: int = 0) -> Program:
        """Starts a training loop; with is_gated it waits for `open_gate`. The first loop is the one that is watched."""
        program = self._stack.enter_context(
            self.start(gate=self._gate if is_gated else None, copied_bytes=copied_bytes)
        )
        program.wait_for("loaded" if is_gated else "ready")
        self._main = self._main or program
        return program

    def open_gate(self, text: str) -> None:
        """Lets the gated loops start."""
        self._say(text)
        self._gate.touch()

    def record(self, *programs: Program) -> None:
        """Records these programs; returns when the probes are attached."""
        self.record_pids(*(program.pid for program in programs))

    def record_pids(self, *numbers: int, options: Sequence[str] = ()) -> None:
        """Records processes by pid; returns when the probes are attached. options: more options of `ingero trace`."""
        pids = ",".join(map(str, numbers))
        self._say(f"ingero trace --pid {pids}")
        command = [sys.executable, "-m", "ingero.cli.main", "trace", "--max-overhead=0", "--max-cpu=0"]
        command += ["--pid", pids, "--db", str(self.recording), *options]
        variables = module_environment({**os.environ, **self.driver_environment(), "PYTHONUNBUFFERED": "1"})
        self._recorder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
        self._stack.callback(_end, self._recorder)
        output = self._recorder.stdout
        assert output is not None
        for line in output:
            if line.startswith("tracing"):
                break
        else:
            raise RecorderFailedError
        threading.Thread(target=_read_away, args=(output,), daemon=True).start()

    def watch(self, seconds: float) -> None:
        """Waits for `seconds` and shows the recording while it grows."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(_POLL_S, left))
            if self._recorder is not None and self._recorder.poll() is not None:
                raise RecorderFailedError
            if self._main is not None:
                self._watch_recording(self.recording, self._main.pid)

    def finish(self) -> int:
        """Ends the recording cleanly; returns the pid of the watched loop."""
        assert self._recorder is not None
        assert self._main is not None
        self._recorder.send_signal(signal.SIGINT)
        if self._recorder.wait():
            raise RecorderFailedError
        self._watch_recording(self.recording, self._main.pid)
        return self._main.pid

    @contextmanager
    def hogs(self, *, name: str, per_cpu: int, nice: int = 0) -> Iterator[None]:
        """Runs spinning processes, per_cpu of them for each CPU."""
        assert self._main is not None
        workload = Workload(pid=self._main.pid, knobs=self.knobs, host_knobs=self.host_knobs)
        fault = Fault("cpu_hog", culprit=name, per_cpu=per_cpu, nice=nice)
        with self.in_effect(), fault.apply(workload) as injection:  # the first of them run while the others are started
            self._say(f"{len(injection.culprits)} processes named {name} want the CPUs")
            yield
        self._say(f"{name} ended")

    @contextmanager
    def spikes(self, *, every: int, ms: float) -> Iterator[None]:
        """Makes the training thread sleep for `ms` in every `every`-th step."""
        knobs = HostKnobs(self.host_knobs)
        before = knobs.change(stall_ms=ms, stall_every=every)
        self._say(f"one step in {every} sleeps {ms:.0f} ms")
        try:
            with self.in_effect():
                yield
        finally:
            knobs.write(before)

    def to_the_end(self, fault: AbstractContextManager[None]) -> None:
        """Starts a fault that outlasts the recording, so that nothing healthy follows it."""
        self._stack.enter_context(fault)

    @contextmanager
    def in_effect(self) -> Iterator[None]:
        """Notes the time range in which a fault was in effect."""
        begin_ns = time.time_ns()
        try:
            yield
        finally:
            self.fault = Window(begin_ns=begin_ns, end_ns=time.time_ns())


def _read_away(lines: Iterator[str]) -> None:
    """Reads and drops the recorder's lines, one a second: the demo shows a table instead."""
    for _ in lines:
        pass


def _end(recorder: subprocess.Popen[str]) -> None:
    if recorder.poll() is None:
        recorder.terminate()
        recorder.wait()
