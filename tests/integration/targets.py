"""Programs to trace from their very first call, with their own copies of library files."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from ingero.demo.gpusim import build as gpusim
from ingero.demo.gpusim.truth import Truth, read_all
from ingero.demo.workloads.program import Program
from ingero.discover.mappings import parse_maps, read_maps
from tests.integration.tracing import Tracer, tracing

# Maps the libraries without running them: they are probed before the program that this process becomes calls them.
WAITER = """
import mmap, os, sys, time
gate, libraries, command = sys.argv[1], sys.argv[2].split(":"), sys.argv[3:]
held = []
for path in libraries:
    with open(path, "rb") as file:
        held.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
print("loaded", os.getpid(), file=sys.stderr, flush=True)
while not os.path.exists(gate):
    time.sleep(0.005)
os.execv(command[0], command)
"""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A simulated GPU of a test's own: its library files, knobs and ground truth lie in `folder`."""

    folder: Path
    libraries: Path
    environment: dict[str, str]
    nccl: Path | None = None  # another file that NCCL is in

    @property
    def knobs(self) -> Path:
        """The knob file."""
        return self.folder / "knobs"

    def truth(self) -> Truth:
        """The ground truth of the simulated libraries, all processes together."""
        return read_all(self.folder / "truth.%p")

    def mapped(self) -> list[Path]:
        """The library files that a program with the default runtime uses."""
        cuda = [self.libraries / name for name in ("libcudart.so.12", "libcuda.so.1")]
        return [*cuda, self.nccl or self.libraries / "libnccl.so.2"]


def simulation(folder: Path, **options: Any) -> Simulation:
    """A simulation in `folder`; options as of `gpusim.environment`."""
    libraries = folder / "lib"
    if not libraries.exists():
        shutil.copytree(gpusim.build(), libraries)
    options = {"sched": "block", **options}
    variables = gpusim.environment(libraries, ctl=folder / "knobs", trace=folder / "truth.%p", **options)
    return Simulation(folder=folder, libraries=libraries, environment={**os.environ, **variables})


class Waiting:
    """A process that becomes its program when it is let go."""

    def __init__(self, program: Program, gate: Path) -> None:
        self.program, self._gate = program, gate
        self.pid = program.pid

    def go(self) -> Program:
        """Lets it go."""
        self._gate.touch()
        return self.program


@contextmanager
def waiting(simulated: Simulation, command: Sequence[object], *, gate_name: str = "go") -> Iterator[Waiting]:
    """A process that uses the libraries and waits to become `command`."""
    gate = simulated.folder / gate_name
    libraries = ":".join(map(str, simulated.mapped()))
    full = [sys.executable, "-c", WAITER, str(gate), libraries, *map(str, command)]
    with Program(full, environment=simulated.environment) as program:
        program.wait_for("loaded")
        yield Waiting(program, gate)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A program that was traced from its first call to its end."""

    output: str
    truth: Truth
    tracer: Tracer

    @property
    def database(self) -> Path:
        """The recording."""
        return self.tracer.database

    @property
    def drops(self) -> dict[str, int]:
        """The counters of dropped or corrected data that the tracer reported."""
        drops: dict[str, int] = self.tracer.messages[-1]["drops"]
        return drops


def record(simulated: Simulation, command: Sequence[object], options: Sequence[str] = ()) -> Recorded:
    """Traces a program from its first call until the tracer ends because the program has ended."""
    with (
        waiting(simulated, command) as process,
        tracing(simulated.folder, pids=[process.pid], options=options) as tracer,
    ):
        output = process.go().finish()
        wait_for_end(tracer)
    return Recorded(output=output, truth=simulated.truth(), tracer=tracer)


def wait_for_end(tracer: Tracer) -> None:
    """Waits until the tracer has ended by itself, with exit code 0."""
    tracer.wait_for("finished")
    assert tracer.process.wait() == 0


def run(simulated: Simulation, command: Sequence[object]) -> str:
    """The output of the program without tracing."""
    with Program(list(map(str, command)), environment=simulated.environment) as program:
        return program.finish()


def until(condition: Callable[[], bool], what: str, limit_s: float = 60) -> None:
    """Waits for a condition; the limit only keeps a failing test from waiting for ever."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.01)


def rows(database: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of a recording, by the published views or the tables behind them."""
    db = apsw.Connection(f"file:{database}?mode=ro", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    try:
        db.set_busy_timeout(5000)
        return list(db.execute(sql, values))
    finally:
        db.close()


def probed_sites(tracer: Tracer) -> list[tuple[str, int]]:
    """(file, offset) of every probe that was attached when the tracer started; waits until they are stored."""
    sites: list[tuple[str, int]] = []
    wanted: int = tracer.messages[0]["probes"]

    def are_stored() -> bool:
        sites[:] = rows(tracer.database, "SELECT library, offset FROM raw_probes WHERE is_attached")
        return len(sites) >= wanted

    until(are_stored, f"{wanted} probes are stored")
    return sites


def breakpoints(pid: int, sites: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The sites whose first byte in the memory of a process differs from the file: those with a breakpoint."""
    changed = []
    maps = [mapping for mapping in parse_maps(read_maps(pid)) if "x" in mapping.permissions and mapping.path]
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for path, offset in sites:
            original = os.pread(fd := os.open(path, os.O_RDONLY), 1, offset)
            os.close(fd)
            for mapping in maps:
                begin, end = mapping.offset, mapping.offset + mapping.end - mapping.start
                if mapping.path == path and begin <= offset < end:
                    memory.seek(mapping.start + offset - begin)
                    if memory.read(1) != original:
                        changed.append((path, offset))
    return changed
