"""Runs `ingero trace` beside a bench or a test, and reads what it says and costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from ingero.capture.loop.single_agent import RUN_FOLDER_VARIABLE
from ingero.errors import IngeroError

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# a governed recording leaves out what costs too much; options that follow win
UNGOVERNED = ("--max-overhead=0", "--max-cpu=0")
_MAX_STDERR_BYTES = 1 << 24  # libbpf alone says 1 MB with --debug
_LONGEST_START_S = 60.0  # 1.2 to 1.5 s; once in many hundred starts it had not begun after two minutes
_LOOK_S = 1.0
_BPF_STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


class BenchError(IngeroError):
    """A figure cannot be measured here, or would be wrong."""


def require_quiet_kernel() -> None:
    """Refuses to measure while the kernel times every BPF program, which costs 55 ns a run."""
    if os.geteuid() != 0:
        raise BenchError("the benches attach probes and need root", hint=f"sudo {' '.join(sys.orig_argv)}")
    if _BPF_STATS.exists() and _BPF_STATS.read_text().strip() != "0":
        raise BenchError("kernel.bpf_stats_enabled is on", hint="sysctl kernel.bpf_stats_enabled=0")


def cpu_s(pid: int) -> float:
    """CPU time of a process so far: the scheduler's, in ns steps, where all its threads still live."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def ended_cpu_s(pid: int) -> float:
    """CPU time of a process so far, its ended threads included, in steps of a clock tick."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def peak_rss_bytes(pid: int) -> int:
    """Largest resident memory of a process so far, mapped kernel memory included."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


@dataclass
class Agent:
    """A running `ingero trace --json`; `messages` holds the lines read so far."""

    process: subprocess.Popen[str]
    database: Path
    messages: list[dict[str, Any]] = field(default_factory=list)
    stderr: IO[bytes] | None = None  # a file; None: a pipe of the process

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self.process.pid

    def wait_for(self, kind: str) -> dict[str, Any]:
        """Reads lines until one of this type.

        Raises:
            BenchError: it has ended before.
        """
        return self.wait_for_any((kind,))

    def wait_for_any(self, kinds: Sequence[str]) -> dict[str, Any]:
        """Reads lines until one of these types.

        Raises:
            BenchError: it has ended before.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.messages.append(json.loads(line))
            if self.messages[-1]["type"] in kinds:
                return self.messages[-1]
        raise BenchError(f"the agent ended before it said {' or '.join(kinds)!r}: {self.stderr_text().strip()}")

    def stderr_text(self) -> str:
        """The text that the agent has written to standard error so far."""
        if self.stderr is not None:
            return os.pread(self.stderr.fileno(), _MAX_STDERR_BYTES, 0).decode(errors="replace")
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def stop(self) -> dict[str, int]:
        """Ends the recording cleanly; returns its drop counters."""
        last: dict[str, Any] = self.messages[-1] if self.messages else {"type": "nothing"}
        if last["type"] != "finished":
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
            last = self.wait_for("finished")
        drops: dict[str, int] = last["drops"]
        self.process.wait()
        return drops

    def calls(self) -> Counter[str]:
        """Outermost calls by operation in the seconds read so far."""
        total: Counter[str] = Counter()
        for message in self.messages:
            if message["type"] == "second":
                total.update(message["calls"])
        return total


_Agent = TypeVar("_Agent", bound=Agent)


def waited_s(pid: int) -> float:
    """Run-queue time (s) of all threads of a process; 0 once it has ended."""
    try:
        return sum(int(task.read_text().split()[1]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
    except OSError:
        return 0.0


@contextmanager
def at_most(seconds: float, process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends a process that takes longer for what is in the block; its stderr says where its threads were.

    What they wait for a CPU does not count: five agents that start at once on two CPUs with 40 other threads take 50 to
    70 s, of which they stand still for one.
    """
    is_over = threading.Event()

    def watch() -> None:
        began = time.monotonic()
        while not is_over.wait(min(_LOOK_S, seconds)):
            if time.monotonic() - began - waited_s(process.pid) > seconds:
                process.send_signal(signal.SIGABRT)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


@contextmanager
def launched(
    kind: type[_Agent],
    database: Path,
    *,
    pids: Sequence[int],
    options: Sequence[str],
    environment: Mapping[str, str],
    within: Sequence[str] = (),
    module: str = "ingero.cli.main",
    popen: Callable[..., Any] = subprocess.Popen,
) -> Iterator[_Agent]:
    """An agent that has attached its probes; killed if not stopped. environment: beside this process's own.

    within: a command that runs it, such as `unshare`. module: that is run as the command. popen: what starts it.

    Raises:
        BenchError: it ended before, or took so long that it was ended; with what it said.
    """
    command = [*within, sys.executable, "-m", module, "trace", "--json", "--db", str(database)]
    command += [*UNGOVERNED, *options]
    if pids:
        command += ["--pid", ",".join(map(str, pids))]
    with (
        tempfile.TemporaryFile() as stderr,  # a pipe that nobody reads would stop the agent once it is full
        popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            env={**os.environ, RUN_FOLDER_VARIABLE: str(database.parent), "PYTHONFAULTHANDLER": "1", **environment},
        ) as process,
    ):
        try:
            running = kind(process, database, stderr=stderr)
            with at_most(_LONGEST_START_S, process):
                running.wait_for("started")
            yield running
        finally:
            if process.poll() is None:
                process.kill()


@contextmanager
def agent(folder: Path, *, pids: Sequence[int], options: Sequence[str] = ()) -> Iterator[Agent]:
    """An agent without stacks that records into a new database in `folder`."""
    database = folder / f"{len(list(folder.glob('*.db')))}.db"
    with launched(Agent, database, pids=pids, options=["--stack=false", *options], environment={}) as running:
        yield running
