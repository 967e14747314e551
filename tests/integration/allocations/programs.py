"""Runs workload.c beside a tracer and reads what was recorded of its memory."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ingero.demo.workloads
from tests.integration.targets import Recorded, Simulation, record, rows, simulation

SOURCE = Path(__file__).with_name("workload.c")
HEADERS = Path(ingero.demo.workloads.__file__).parent


def built(folder: Path) -> Path:
    """The compiled workload."""
    program = folder / "workload"
    if not program.exists():
        command = ["gcc", "-O1", "-pthread", f"-I{HEADERS}", str(SOURCE), "-o", str(program)]
        subprocess.run(command, check=True)
    return program


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A run of the workload: what it said of itself, and what was recorded of it."""

    said: dict[str, int]
    recorded: Recorded

    def sums(self, column: str) -> int:
        """The sum of a column over all rows of raw_allocations."""
        found = rows(self.recorded.database, f"SELECT coalesce(sum({column}), 0) FROM raw_allocations")
        return int(found[0][0])

    def held(self) -> dict[str, int]:
        """Live bytes at the end by kind of memory, summed over sites."""
        newest = (
            "SELECT memory_kind, live_bytes, row_number() OVER (PARTITION BY pid, source, op, caller, stack_hash, "
            "memory_kind ORDER BY timestamp DESC) AS age FROM gpu_memory"
        )
        found = rows(
            self.recorded.database,
            f"SELECT memory_kind, sum(live_bytes) FROM ({newest}) WHERE age = 1 GROUP BY 1 HAVING sum(live_bytes) > 0",
        )
        return {str(kind): int(held) for kind, held in found}

    def totals(self) -> dict[str, tuple[int, int, int]]:
        """Per process and kind: (live bytes at the end, most at a time, calls that do not count)."""
        found = rows(
            self.recorded.database,
            "SELECT memory_kind, live_bytes, max(peak_bytes), unpaired, max(timestamp) FROM gpu_memory_seconds "
            "GROUP BY memory_kind",
        )
        return {str(row[0]): (int(row[1]), int(row[2]), int(row[3])) for row in found}


def followed(folder: Path, *arguments: Any, options: tuple[str, ...] = (), **simulated: Any) -> Followed:
    """The workload with these arguments, traced from its first call to its end."""
    one: Simulation = simulation(folder, **simulated)
    result = record(one, [built(folder), *arguments], options)
    return Followed(said=json.loads(result.output), recorded=result)
