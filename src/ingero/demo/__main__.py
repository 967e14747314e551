"""`make demo`: records a training loop on the simulated GPU while CPU hogs disturb it, and explains the recording."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from ingero.demo.faults import Fault, Target
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.program import Program
from ingero.errors import IngeroError

QUIET_S = 5.0
DISTURBED_S = 5.0
NOTHING_FOUND, INCIDENT_FOUND = 0, 1  # exit codes of explain
_INGERO = [sys.executable, "-m", "ingero.cli.main"]


class NeedsRootError(IngeroError):
    """The demo attaches real probes."""

    def __init__(self) -> None:
        super().__init__("the demo records with real probes, which needs root", hint="sudo make demo")


class ExplainFailedError(IngeroError):
    """`ingero explain` ended with an error; it has said which."""

    def __init__(self) -> None:
        super().__init__("the recording could not be explained", hint="the message above says why")


class RecorderFailedError(IngeroError):
    """`ingero trace` ended with an error; it has said which."""

    def __init__(self) -> None:
        super().__init__("the recorder failed", hint="the message above says why")


def main() -> None:
    """Builds the simulated GPU, trains on it, disturbs it, records it, explains it."""
    if os.geteuid() != 0:
        raise NeedsRootError
    _say("building the simulated GPU (gcc)")
    libraries = build()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingero-demo-")))
        knobs, host_knobs = folder / "gpu.knobs", folder / "host.knobs"
        variables = {**os.environ, **environment(libraries, ctl=knobs, sched="block")}
        arguments = ("--seconds", 120, "--workers", 1, "--knob", host_knobs, "--out", folder / "steps.jsonl")
        _say("training on the simulated GPU: a data-loading worker, 150 launches and one drain per step")
        trainer = stack.enter_context(Program.module("train", *arguments, environment=variables))
        trainer.wait_for("ready")
        database = folder / "demo.db"
        recorder = _record(trainer.pid, database, stack)
        time.sleep(QUIET_S)
        fault = Fault("cpu_hog")
        with fault.apply(Target(pid=trainer.pid, knobs=knobs, host_knobs=host_knobs)) as injection:
            _say(f"CPU hogs started: pids {', '.join(map(str, injection.culprits))}")
            time.sleep(DISTURBED_S)
        _say("CPU hogs ended")
        recorder.send_signal(signal.SIGINT)
        if recorder.wait():
            raise RecorderFailedError
        _say("ingero explain\n")
        done = subprocess.run([*_INGERO, "explain", "--db", str(database)], check=False)
        if done.returncode not in (NOTHING_FOUND, INCIDENT_FOUND):
            raise ExplainFailedError


def _record(pid: int, database: Path, stack: ExitStack) -> subprocess.Popen[str]:
    """A recorder that has attached its probes; what it prints is passed on."""
    _say(f"ingero trace --pid {pid}\n")
    command = [*_INGERO, "trace", "--max-overhead=0", "--max-cpu=0"]
    command += ["--pid", str(pid), "--db", str(database)]
    recorder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(_end, recorder)
    output = recorder.stdout
    assert output is not None
    for line in output:
        print(line, end="", flush=True)
        if line.startswith("tracing"):
            break
    threading.Thread(target=_pass_on, args=(output,), daemon=True).start()
    return recorder


def _pass_on(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, end="", flush=True)


def _end(recorder: subprocess.Popen[str]) -> None:
    if recorder.poll() is None:
        recorder.terminate()
        recorder.wait()


def _say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except IngeroError as error:
        sys.exit(f"error: {error}\n  try: {error.hint}")
