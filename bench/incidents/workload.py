"""Starts a scenario's workload on the simulated GPU, and knows when each of its steps ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.incidents.plan.kinds import KINDS
from bench.incidents.recipes import BenchWorkload, PrepareOnly
from bench.incidents.scenario import Scenario
from ingero.demo.faults.model import Recipe
from ingero.demo.faults.processes import threads, tree
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.ddp import rank_path
from ingero.demo.workloads.host_knobs import HostKnobs, HostState
from ingero.demo.workloads.program import Program

LIFE_S = 120  # bounds the workload's life if the bench is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRun:
    """A started workload; `log` gets a line for each step (or answer), `traced` are the pids for --pid."""

    workload: BenchWorkload
    recipes: tuple[Recipe, ...]
    log: Path
    traced: tuple[int, ...]

    def pids(self) -> set[int]:
        """The workload's processes of now, its traffic included."""
        return {*tree(self.workload.pid), *tree(self.workload.traffic_pid)} - {0}


@contextmanager
def running(scenario: Scenario, seed: int, folder: Path) -> Iterator[WorkloadRun]:
    """Start it and keep it running for the block."""
    recipes = tuple(_recipe(scenario, number) for number in range(len(scenario.disturbances)))
    knobs = folder / "host.knobs"
    HostKnobs(knobs).write(HostState(**_base_knobs(scenario)))
    if scenario.workload == "ddp":
        HostKnobs(rank_path(knobs, 1)).write(HostState())
    libraries = environment(build(), ctl=folder / "gpu.knobs", sched=scenario.sched, trace=folder / "truth-%p")
    with ExitStack() as stack:
        setups = [stack.enter_context(recipe.prepare(folder)) for recipe in recipes]
        arguments = [*_kind_arguments(scenario), *(a for setup in setups for a in setup.arguments), *scenario.arguments]
        groups = tuple(group for setup in setups for group in setup.cgroups)
        start = _serve if scenario.workload == "serve" else _train
        workload, log = start(stack, scenario, seed, folder, arguments, groups, {**os.environ, **libraries})
        if scenario.cpus:
            for tid in threads(workload.pid):
                os.sched_setaffinity(tid, scenario.cpus)
        traced = tuple(tree(workload.pid)[1:]) if scenario.workload == "ddp" else (workload.pid,)
        yield WorkloadRun(workload=workload, recipes=recipes, log=log, traced=traced)


def gate_of(folder: Path) -> Path:
    """The file that a cold workload waits for before its first call."""
    return folder / "go"


def completions(log: Path) -> list[int]:
    """When each step (or answer) of the log ended, CLOCK_MONOTONIC ns."""
    whole_lines = log.read_text().rpartition("\n")[0]
    return [json.loads(line)["t_ns"] for line in whole_lines.splitlines()]


def _recipe(scenario: Scenario, number: int, share: float = 1.0) -> Recipe:
    one = scenario.disturbances[number]
    recipe = KINDS[one.kind].recipe(one.dose * share, scenario.sched)
    return PrepareOnly(recipe) if scenario.is_control else recipe


def in_dose(scenario: Scenario, number: int, share: float) -> Recipe:
    """The disturbance with that number in a share of its dose."""
    return _recipe(scenario, number, share)


def _base_knobs(scenario: Scenario) -> dict[str, float]:
    return {name: value for one in scenario.disturbances for name, value in KINDS[one.kind].knobs(one.dose).items()}


def _kind_arguments(scenario: Scenario) -> list[str]:
    return [argument for one in scenario.disturbances for argument in KINDS[one.kind].arguments]


def _train(
    stack: ExitStack,
    scenario: Scenario,
    seed: int,
    folder: Path,
    arguments: list[str],
    groups: tuple[Path, ...],
    variables: dict[str, str],
) -> tuple[BenchWorkload, Path]:
    log, knobs = folder / "steps.jsonl", folder / "host.knobs"
    gate = ("--gate", gate_of(folder)) if scenario.is_cold else ()
    command = ("--seconds", LIFE_S, "--seed", seed, "--out", log, "--knob", knobs, *gate, *arguments)
    program = Program.module(scenario.workload, *command, environment=variables, cgroups=groups)
    stack.enter_context(program).wait_for("loaded" if scenario.is_cold else "ready")
    workload = BenchWorkload(pid=program.pid, knobs=folder / "gpu.knobs", host_knobs=knobs)
    return workload, rank_path(log, 0) if scenario.workload == "ddp" else log


def _serve(
    stack: ExitStack,
    scenario: Scenario,
    seed: int,
    folder: Path,
    arguments: list[str],
    groups: tuple[Path, ...],
    variables: dict[str, str],
) -> tuple[BenchWorkload, Path]:
    del seed
    log = folder / "answers.jsonl"
    server = Program.module("serve_inference", "--out", log, *arguments, environment=variables, cgroups=groups)
    _, port = stack.enter_context(server).wait_for("ready")
    load = Program.module("serve_load", port, "--seconds", LIFE_S, "--out", "/dev/null", *scenario.traffic)
    stack.enter_context(load)
    workload = BenchWorkload(
        pid=server.pid, knobs=folder / "gpu.knobs", host_knobs=folder / "host.knobs", traffic_pid=load.pid
    )
    return workload, log


def missing(scenario: Scenario) -> str | None:
    """Why this machine cannot run it, None if it can."""
    if scenario.cpus and not scenario.cpus < os.sched_getaffinity(0):
        return "it needs a CPU for the disturbance beside that of the workload"
    return next(
        (reason for n in range(len(scenario.disturbances)) if (reason := _recipe(scenario, n).requires())), None
    )
