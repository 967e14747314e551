"""`ingero query` on real recordings of two ranks in containers: the questions per container are exact, or say so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ingero.demo.workloads.program import Program
from tests.integration.container_groups import docker_path, group
from tests.integration.targets import WAITER, rows, simulation, wait_for_end
from tests.integration.tracing import tracing
from tests.unit.serve.test_sql import PER_CONTAINER, PER_CONTAINER_NCCL

pytestmark = pytest.mark.integration

RANKS = 2
WHOLE = ("--steps", "5", "--layers", "2")
MANY = ("--steps", "300", "--layers", "8")  # more than 100 launches a second: then not all are stored
BRIEF = ("--us", "5", "--workers", "1", "--cpu-ms", "0.1", "--nbytes", "4096")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A finished recording and the containers that were in it."""

    database: Path
    containers: tuple[str, ...]

    def ask(self, sql: str) -> tuple[list[dict[str, Any]], str]:
        """Rows that `ingero query --json` answers, and what it says on standard error."""
        command = [sys.executable, "-m", "ingero.cli.main", "query", "-d", str(self.database), "--json", sql]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def record(folder: Path, length: tuple[str, ...], *options: str) -> Recorded:
    """Records a job of two ranks, each in a container, from its first call to its end."""
    simulated = simulation(folder, devices=RANKS)
    gate, containers = folder / "go", []
    with ExitStack() as stack:
        programs = []
        for rank in range(RANKS):
            container, path = docker_path()
            containers.append(container)
            command = [sys.executable, "-m", "ingero.demo.workloads.train", *length, *BRIEF, "--rank", str(rank)]
            command += ["--world", str(RANKS), "--uid", str(folder / "meeting"), "--out", os.devnull]
            program = Program(
                [sys.executable, "-c", WAITER, str(gate), ":".join(map(str, simulated.mapped())), *command],
                environment=simulated.environment | {"RANK": str(rank), "WORLD_SIZE": str(RANKS)},
                cgroups=[stack.enter_context(group(path))],
            )
            programs.append(stack.enter_context(program))
        for program in programs:
            program.wait_for("loaded")
        pids = [program.pid for program in programs]
        with tracing(folder, pids=pids, options=options) as tracer:
            gate.touch()
            for program in programs:
                program.finish()
            wait_for_end(tracer)
    return Recorded(database=tracer.database, containers=tuple(containers))


def exact(database: Path, view: str, name: str) -> dict[tuple[str, str | None], int]:
    """Exact counts by container and name of the operation or kernel."""
    found = rows(
        database,
        f"SELECT c.container_id, t.{name}, sum(t.count) FROM {view} t JOIN containers c ON c.cgroup_id = t.cgroup_id "
        "GROUP BY 1, 2",
    )
    return {(container, name): count for container, name, count in found}


def test_with_every_call_stored_the_questions_per_container_give_the_exact_counts(tmp_path: Path) -> None:
    recorded = record(tmp_path, WHOLE, "--record-all")

    launches, said = recorded.ask(PER_CONTAINER.replace("LIMIT 20", "LIMIT 1000"))
    assert said == ""
    assert {row["container_id"] for row in launches} == set(recorded.containers)
    named = {(row["container_id"], row["kernel_name"]): row["launches"] for row in launches if row["kernel_name"]}
    assert {container for container, _ in named} == set(recorded.containers)
    assert named == exact(recorded.database, "kernel_launches", "kernel_name")

    calls, said = recorded.ask(PER_CONTAINER_NCCL)
    assert said == ""
    counted = {(row["container_id"], row["op"]): row["calls"] for row in calls}
    nccl = {key: count for key, count in exact(recorded.database, "op_stats", "op_name").items() if key in counted}
    assert counted == nccl
    assert {container for container, _ in counted} == set(recorded.containers)


def test_a_selective_recording_says_its_share_and_where_the_exact_counts_are(tmp_path: Path) -> None:
    recorded = record(tmp_path, MANY)

    stored, said = recorded.ask(PER_CONTAINER.replace("LIMIT 20", "LIMIT 1000"))
    assert said.startswith("note: cuda_events holds ")
    exact_sql = said.partition("Exact: ")[2].partition("; exact times")[0].strip()
    answer, note = recorded.ask(exact_sql)
    assert note == ""
    whole = {(row["container_id"], row["kernel_name"]): row["calls"] for row in answer}
    assert whole == exact(recorded.database, "kernel_launches", "kernel_name")
    kept = {(row["container_id"], row["kernel_name"]): row["launches"] for row in stored if row["kernel_name"]}
    assert kept.keys() <= whole.keys()
    assert sum(kept.values()) < sum(whole.values())
