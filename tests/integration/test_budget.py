"""A budget is kept by tracing less, which is told, and everything is traced again when there is room for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.program import Program
from tests.integration.targets import rows
from tests.integration.tracing import Tracer, tracing

pytestmark = pytest.mark.integration


@contextmanager
def launch_bound(folder: Path, *options: str) -> Iterator[tuple[Program, Tracer]]:
    """A loop of many short launches, and a tracer of it with these options."""
    variables = environment(build(), ctl=folder / "knobs", sched="block")
    loop = ("--us", 2, "--cpu-ms", 0.2, "--seconds", 120, "--out", folder / "steps.jsonl")
    with Program.module("train", *loop, environment={**os.environ, **variables}) as program:
        program.wait_for("ready")
        with tracing(folder, pids=[program.pid], options=options) as tracer:
            yield program, tracer
        program.stop()


@dataclass(frozen=True, kw_only=True)
class Limited:
    """A loop beside a tracer with a budget; then it rested until everything was traced again.

    seconds: what the tracer said before the rest, which began at rest_ns (Unix time).
    """

    seconds: list[dict[str, Any]]
    rest_ns: int
    database: Path


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Limited:
    """One recording for what is given up and for what is taken up again."""
    with launch_bound(tmp_path_factory.mktemp("limited"), "--max-overhead", "0.5%") as (program, tracer):
        seconds = [tracer.wait_for("second") for _ in range(8)]
        rest_ns = time.time_ns()
        while not tracer.messages[-1]["level"]:
            tracer.wait_for("second")
        program.process.send_signal(signal.SIGSTOP)
        while tracer.wait_for("second")["level"]:
            pass
        program.process.send_signal(signal.SIGCONT)
    return Limited(seconds=seconds, rest_ns=rest_ns, database=tracer.database)


def test_a_launch_bound_loop_is_brought_inside_its_budget_and_told_why(limited: Limited) -> None:
    seconds = limited.seconds
    print("\n" + " ".join(f"{second['overhead_ratio']:.3f}" for second in seconds))
    assert seconds[0]["level"] == 0
    assert max(second["overhead_ratio"] for second in seconds) > 0.005
    assert seconds[-1]["overhead_ratio"] <= 0.005
    assert seconds[-1]["level"] > 0
    assert seconds[-1]["not_traced"]
    stored = rows(
        limited.database,
        "SELECT level, reason, not_traced, full_ns, overhead_ratio FROM overhead_levels WHERE timestamp < ? ORDER BY 1",
        limited.rest_ns,
    )
    assert stored[0][:3] == (0, "start", "")
    assert stored[0][3] > 0
    assert stored[-1][0] == seconds[-1]["level"]
    assert "allowed are 0.5%" in stored[-1][1]
    assert stored[-1][2].split(",") == seconds[-1]["not_traced"]


def test_everything_is_traced_again_when_the_loop_rests(limited: Limited) -> None:
    assert limited.seconds[-1]["level"] > 0
    assert rows(limited.database, "SELECT level FROM overhead_levels ORDER BY timestamp DESC LIMIT 1") == [(0,)]


def test_without_a_budget_cost_is_told_and_nothing_given_up(tmp_path: Path) -> None:
    with launch_bound(tmp_path) as (_, tracer):
        seconds = [tracer.wait_for("second") for _ in range(3)]
    assert max(second["overhead_ratio"] for second in seconds) > 0.005
    assert all(second["agent_cpu_ratio"] > 0 for second in seconds)
    assert {second["level"] for second in seconds} == {0}
    assert min(tracer.messages[0]["trap_costs_ns"].values()) > 0
