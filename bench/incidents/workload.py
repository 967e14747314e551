"""Starts a scenario's workload on the simulated GPU, and knows when each of its steps ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.incidents.plan.kinds import KINDS
from bench.incidents.recipes import RunTarget, Staged
from bench.incidents.scenario import Scenario
from ingero.demo.faults.model import Recipe
from ingero.demo.faults.processes import threads, tree
from ingero.demo.gpusim.build import build, environment
from ingero.demo.workloads.ddp import rank_path
from ingero.demo.workloads.host_knobs import HostKnobs, HostState
from ingero.demo.workloads.program import Program

LIFE_S = 120  # bounds the workload's life if the bench is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A workload that has begun; `log` gets a line for each step (or answer), `traced` is what --pid is given."""

    target: RunTarget
    recipes: tuple[Recipe, ...]
    log: Path
    traced: tuple[int, ...]

    def pids(self) -> set[int]:
        """The workload's processes of now, its traffic included."""
        return {*tree(self.target.pid), *tree(self.target.traffic_pid)} - {0}


@contextmanager
def running(scenario: Scenario, seed: int, folder: Path) -> Iterator[Running]:
    """Start it and keep it running for the block."""
    recipes = tuple(_recipe(scenario, number) for number in range(len(scenario.disturbances)))
    knobs = folder / "host.knobs"
    HostKnobs(knobs).write(HostState(**_base_knobs(scenario)))
    if scenario.workload == "ddp":
        HostKnobs(rank_path(knobs, 1)).write(HostState())
    libraries = environment(build(), ctl=folder / "gpu.knobs", sched=scenario.sched, trace=folder / "truth-%p")
    with ExitStack() as stack:
        stages = [stack.enter_context(recipe.stage(folder)) for recipe in recipes]
        arguments = [*_kind_arguments(scenario), *(a for stage in stages for a in stage.arguments), *scenario.arguments]
        groups = tuple(group for stage in stages for group in stage.cgroups)
        start = _serve if scenario.workload == "serve" else _train
        target, log = start(stack, scenario, seed, folder, arguments, groups, {**os.environ, **libraries})
        if scenario.cpus:
            for tid in threads(target.pid):
                os.sched_setaffinity(tid, scenario.cpus)
        traced = tuple(tree(target.pid)[1:]) if scenario.workload == "ddp" else (target.pid,)
        yield Running(target=target, recipes=recipes, log=log, traced=traced)


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
    return Staged(recipe) if scenario.is_control else recipe


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
) -> tuple[RunTarget, Path]:
    log, knobs = folder / "steps.jsonl", folder / "host.knobs"
    gate = ("--gate", gate_of(folder)) if scenario.is_cold else ()
    command = ("--seconds", LIFE_S, "--seed", seed, "--out", log, "--knob", knobs, *gate, *arguments)
    program = Program.module(scenario.workload, *command, environment=variables, cgroups=groups)
    stack.enter_context(program).wait_for("loaded" if scenario.is_cold else "ready")
    target = RunTarget(pid=program.pid, knobs=folder / "gpu.knobs", host_knobs=knobs)
    return target, rank_path(log, 0) if scenario.workload == "ddp" else log


def _serve(
    stack: ExitStack,
    scenario: Scenario,
    seed: int,
    folder: Path,
    arguments: list[str],
    groups: tuple[Path, ...],
    variables: dict[str, str],
) -> tuple[RunTarget, Path]:
    del seed
    log = folder / "answers.jsonl"
    server = Program.module("serve_inference", "--out", log, *arguments, environment=variables, cgroups=groups)
    _, port = stack.enter_context(server).wait_for("ready")
    load = Program.module("serve_load", port, "--seconds", LIFE_S, "--out", "/dev/null", *scenario.traffic)
    stack.enter_context(load)
    target = RunTarget(
        pid=server.pid, knobs=folder / "gpu.knobs", host_knobs=folder / "host.knobs", traffic_pid=load.pid
    )
    return target, log


def missing(scenario: Scenario) -> str | None:
    """Why this machine cannot run it, None if it can."""
    if scenario.cpus and not scenario.cpus < os.sched_getaffinity(0):
        return "it needs a CPU for the disturbance beside that of the workload"
    return next(
        (reason for n in range(len(scenario.disturbances)) if (reason := _recipe(scenario, n).requires())), None
    )
