"""Runs workload.c beside a tracer and reads what was recorded of its memory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ingero.demo.workloads
from tests.integration.targets import rows, simulation, wait_for_end, waiting
from tests.integration.tracing import tracing

SOURCE = Path(__file__).with_name("workload.c")
HEADERS = Path(ingero.demo.workloads.__file__).parent
OF_PROCESS = "JOIN raw_processes p USING (process) WHERE p.pid = ?"


def built(folder: Path) -> Path:
    """The compiled workload."""
    program = folder / "workload"
    if not program.exists():
        command = ["gcc", "-O1", "-pthread", f"-I{HEADERS}", str(SOURCE), "-o", str(program)]
        subprocess.run(command, check=True)
    return program


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A run of the workload: what it said of itself, and what was recorded of its process."""

    said: dict[str, int]
    database: Path
    pid: int

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of the recording; the last value of the statement is the process id."""
        return rows(self.database, sql, *values, self.pid)

    def sums(self, column: str) -> int:
        """The sum of a column over all rows of raw_allocations."""
        found = self.rows(f"SELECT coalesce(sum({column}), 0) FROM raw_allocations {OF_PROCESS}")
        return int(found[0][0])

    def held(self) -> dict[str, int]:
        """Live bytes at the end by kind of memory, summed over sites."""
        newest = (
            "SELECT memory_kind, live_bytes, row_number() OVER (PARTITION BY pid, source, op, caller, stack_hash, "
            "memory_kind ORDER BY timestamp DESC) AS age FROM gpu_memory WHERE pid = ?"
        )
        found = self.rows(
            f"SELECT memory_kind, sum(live_bytes) FROM ({newest}) WHERE age = 1 GROUP BY 1 HAVING sum(live_bytes) > 0",
        )
        return {str(kind): int(held) for kind, held in found}

    def totals(self) -> dict[str, tuple[int, int, int]]:
        """Per process and kind: (live bytes at the end, most at a time, calls that do not count)."""
        found = self.rows(
            "SELECT memory_kind, live_bytes, max(peak_bytes), unpaired, max(timestamp) FROM gpu_memory_seconds "
            "WHERE pid = ? GROUP BY memory_kind",
        )
        return {str(row[0]): (int(row[1]), int(row[2]), int(row[3])) for row in found}


def followed(folder: Path, *arguments: Any) -> Followed:
    """The workload with these arguments, traced from its first call to its end."""
    return all_followed(folder, {"": arguments})[""]


def all_followed(folder: Path, runs: Mapping[str, Sequence[Any]]) -> dict[str, Followed]:
    """Runs of the workload with these arguments, by name: in one recording, one after the other."""
    simulated = simulation(folder)
    with ExitStack() as stack:
        processes = {
            name: stack.enter_context(waiting(simulated, [built(folder), *arguments], gate_name=f"go-{name}"))
            for name, arguments in runs.items()
        }
        tracer = stack.enter_context(tracing(folder, pids=[one.pid for one in processes.values()]))
        said = {name: json.loads(one.go().finish()) for name, one in processes.items()}
        wait_for_end(tracer)
    return {name: Followed(said=said[name], database=tracer.database, pid=one.pid) for name, one in processes.items()}
