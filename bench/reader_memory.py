"""What the processes that read foreign files cost in memory: an agent with them beside one that reads all by itself.

A trainer runs on the simulated GPU, and a program that maps another copy of a library twice a second, so that the loop
and the threads that name things both ask. The agents take turns. Memory is Pss of all of an agent's processes (what
several share counts once), read every quarter of a second, after the start.

Run as root: python -m bench.reader_memory [--rounds N] [--seconds S] [--short] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.agent import Agent, BenchError, launched
from ingero.demo.workloads.program import Program
from tests.integration.targets import Simulation, simulation

MAX_MORE_BYTES = 20 << 20  # what is promised
_KINDS = {"with readers": "ingero.cli.main", "without": "bench.without_readers"}
_PERIOD_S, _SETTLING_S = 0.25, 3.0
_LOOP = ("--seconds", 3600, "--layers", 2, "--us", 400, "--launches", 1, "--out", os.devnull)

# Maps one copy after the other; each is a file of its own.
_LOADER = """
import ctypes, os, shutil, sys, time
library, folder = sys.argv[1:]
data, number = open(library, "rb").read(), 0
while True:
    path = os.path.join(folder, str(number), "libcudart.so.12")
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(data + str(number).encode())
    cuda, number = ctypes.CDLL(path), number + 1
    shutil.rmtree(os.path.join(folder, str(number - 20)), ignore_errors=True)
    cuda.cudaStreamSynchronize(None)
    time.sleep(0.5)
"""


@dataclass
class Memory:
    """Bytes (Pss) by process name, a list of readings each; total: of all at one moment."""

    total: list[int] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    named: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def read(self, pid: int) -> None:
        """Once more."""
        found = {one: size for one in (pid, *descendants(pid)) if (size := pss_bytes(one)) is not None}
        if pid not in found:
            raise BenchError("the agent has ended: what it takes cannot be read")
        self.total.append(sum(found.values()))
        self.processes.append(len(found))
        for one, size in found.items():
            self.named[_name(one)].append(size)


def pss_bytes(pid: int) -> int | None:
    """The Pss of a process in bytes; None: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), None)


def descendants(pid: int) -> list[int]:
    """The processes that one has made, and those that they have."""
    try:
        tasks = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(one) for text in tasks for one in text.split()]
    return [one for child in children for one in (child, *descendants(child))]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "ended"


@contextmanager
def _load(simulated: Simulation) -> Iterator[list[int]]:
    copies = simulated.folder / "copies"
    copies.mkdir()
    command = [sys.executable, "-c", _LOADER, str(simulated.libraries / "libcudart.so.12"), str(copies)]
    with Program.module("train", *_LOOP, environment=simulated.environment) as trainer:
        trainer.wait_for()
        with subprocess.Popen(command, env=simulated.environment) as loader:
            try:
                yield [trainer.pid, loader.pid]
            finally:
                loader.kill()
    shutil.rmtree(copies)


def run(rounds: int, seconds: float) -> dict[str, Any]:
    """Readings of both kinds."""
    found = {kind: Memory() for kind in _KINDS}
    with tempfile.TemporaryDirectory() as name, _load(simulation(Path(name))) as pids:
        for turn in range(rounds):
            for kind in list(_KINDS) if turn % 2 == 0 else reversed(list(_KINDS)):
                _measure(Path(name) / f"{turn}-{_KINDS[kind]}.db", pids, kind, found[kind], seconds)
    return {
        kind: {
            "median_bytes": statistics.median(memory.total),
            "largest_bytes": max(memory.total),
            "processes": max(memory.processes),
            "by_name": {name: statistics.median(sizes) for name, sizes in sorted(memory.named.items())},
        }
        for kind, memory in found.items()
    }


def _measure(database: Path, pids: list[int], kind: str, memory: Memory, seconds: float) -> None:
    options = ["--stack", "--record-all"]
    with launched(Agent, database, pids=pids, options=options, environment={}, module=_KINDS[kind]) as agent:
        time.sleep(_SETTLING_S)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            memory.read(agent.pid)
            time.sleep(_PERIOD_S)
        agent.stop()


def _print(figures: dict[str, Any]) -> None:
    for kind, one in figures.items():
        parts = ", ".join(f"{name} {size / 2**20:.1f}" for name, size in one["by_name"].items())
        print(
            f"{kind:14} median {one['median_bytes'] / 2**20:6.1f} MiB, largest {one['largest_bytes'] / 2**20:6.1f}, "
            f"at most {one['processes']} processes: {parts}"
        )
    more, most = (figures["with readers"][key] - figures["without"][key] for key in ("median_bytes", "largest_bytes"))
    ratio = figures["with readers"]["median_bytes"] / figures["without"]["median_bytes"]
    print(
        f"readers cost {more / 2**20:.1f} MiB (ratio {ratio:.2f}; largest moments: {most / 2**20:.1f}), "
        f"promised: {MAX_MORE_BYTES >> 20}"
    )


def main() -> None:
    """Prints it; exit code 1 where it is more than is promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--short", action="store_true", help="one round of 1 s")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = run(1, 1.0) if options.short else run(options.rounds, options.seconds)
    if options.json:
        print(json.dumps(figures))
        return
    _print(figures)
    if figures["with readers"]["median_bytes"] - figures["without"]["median_bytes"] > MAX_MORE_BYTES:
        sys.exit(1)


if __name__ == "__main__":
    main()
