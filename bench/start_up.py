"""How long it takes until `ingero trace` records a running trainer's first call, and how long `ingero check` takes.

The trainer runs on the simulated GPU all the time. Each round starts the agent anew, from `exec` on; phases are marked
from outside (phase_marks). On a busy machine look at the agent's CPU time: the wall time is then mostly the others'.

Run as root: python -m bench.start_up [--rounds N] [--short] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.agent import BenchError, cpu_s
from ingero.demo.workloads.program import Program
from tests.integration.targets import rows, simulation

FIRST_EVENT_S, CHECK_S = 1.5, 0.5  # what is promised on a machine that has nothing else to do
_FIRST_CALL = "SELECT min(start_ns) FROM raw_events WHERE source IN (1, 4) AND start_ns >= ?"
_SECONDS = 1.0  # recorded after the start, so that the first call is stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The end of a phase: time since `exec`, and the process's CPU time so far."""

    phase: str
    wall_ms: float
    cpu_ms: float


@contextmanager
def trainer(folder: Path) -> Iterator[int]:
    """A trainer that goes on until it is stopped: its pid."""
    environment = simulation(folder).environment
    with Program.module("train", "--seconds", 3600, "--out", os.devnull, environment=environment) as program:
        program.wait_for()
        yield program.pid


def start(folder: Path, pid: int, number: int) -> tuple[list[Mark], float, float]:
    """One start: the phases, when the first recorded call began (ms since exec), CPU time of the agent until then."""
    database, marks = folder / f"{number}.db", folder / f"{number}.marks"
    since_ns, since_unix_ns = time.monotonic_ns(), time.time_ns()
    command = [sys.executable, "-m", "bench.phase_marks", str(marks), str(since_ns), "trace"]
    command += ["--json", "--pid", str(pid), "--db", str(database), "--record-all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_with_bytecode()) as agent:
        assert agent.stdout is not None
        if not agent.stdout.readline():
            raise BenchError("the agent ended before it had started", hint="sudo ingero check")
        cpu_ms = cpu_s(agent.pid) * 1e3
        time.sleep(_SECONDS)
        agent.send_signal(signal.SIGINT)
        agent.stdout.read()
    first = rows(
        database, "SELECT min(start_ns) FROM raw_events WHERE source IN (1, 4) AND start_ns >= ?", since_unix_ns
    )
    if first[0][0] is None:
        raise BenchError("no call was recorded")
    return _read(marks), (first[0][0] - since_unix_ns) / 1e6, cpu_ms


def check() -> tuple[float, float]:
    """(wall, CPU) of one `ingero check`, in ms."""
    began, children = time.monotonic(), os.times()
    subprocess.run(
        [sys.executable, "-m", "ingero.cli.main", "check"], stdout=subprocess.DEVNULL, check=False, env=_with_bytecode()
    )
    after = os.times()
    used = after.children_user + after.children_system - children.children_user - children.children_system
    return (time.monotonic() - began) * 1e3, used * 1e3


def _with_bytecode() -> dict[str, str]:
    """The environment of an installed package, whose modules are compiled once."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _read(path: Path) -> list[Mark]:
    return [Mark(**json.loads(line)) for line in path.read_text().splitlines()]


def run(rounds: int) -> dict[str, Any]:
    """The medians of some starts, after one that fills the caches."""
    starts, checks = [], []
    with tempfile.TemporaryDirectory() as name, trainer(Path(name)) as pid:
        for number in range(rounds + 1):
            starts.append(start(Path(name), pid, number))
            checks.append(check())
    starts, checks = starts[1:], checks[1:]
    phases = [
        Mark(
            phase=marks[0].phase,
            wall_ms=statistics.median(mark.wall_ms for mark in marks),
            cpu_ms=statistics.median(mark.cpu_ms for mark in marks),
        )
        for marks in zip(*(marks for marks, _, _ in starts), strict=True)
    ]
    return {
        "rounds": rounds,
        "phases": [asdict(mark) for mark in phases],
        "first_call_ms": statistics.median(first for _, first, _ in starts),
        "first_call_least_ms": min(first for _, first, _ in starts),
        "started_cpu_ms": statistics.median(cpu for _, _, cpu in starts),
        "check_ms": statistics.median(wall for wall, _ in checks),
        "check_least_ms": min(wall for wall, _ in checks),
        "check_cpu_ms": statistics.median(cpu for _, cpu in checks),
    }


def print_text(result: dict[str, Any]) -> None:
    """The table."""
    print(f"medians of {result['rounds']} starts       since exec  agent's CPU")
    for mark in result["phases"]:
        print(f"  {mark['phase']:<34}{mark['wall_ms']:8.0f} ms{mark['cpu_ms']:8.0f} ms")
    print(
        f"  first recorded call begins{result['first_call_ms']:16.0f} ms (least {result['first_call_least_ms']:.0f}; "
        f"promised {FIRST_EVENT_S * 1e3:.0f})"
    )
    print(
        f"ingero check{result['check_ms']:32.0f} ms{result['check_cpu_ms']:8.0f} ms "
        f"(least {result['check_least_ms']:.0f}; promised {CHECK_S * 1e3:.0f})"
    )


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--short", action="store_true", help="one round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = run(1 if options.short else options.rounds)
    print(json.dumps(result)) if options.json else print_text(result)


if __name__ == "__main__":
    main()
