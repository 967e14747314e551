"""Settings with which a kind costs its dose in spite of the time that a program hides. Measured on two cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from bench.incidents.plan.doses import HOG_LOSS
from bench.incidents.plan.programs import Program

COPY_MS = 1.4  # of 16 MiB at the usual 12 GB/s
INTERPRETER_FREE = 0.15  # doses.gil_duty adds it, for what hides behind the device
RUN_AHEAD_S = 0.04  # 1,022 launches of the default loop
SPIKE_EVERY = 50  # steps
HOT = 13 / 18  # of what a collection takes in a loop that waits, and whose caches are cold then


def setting(program: Program, kind: str, dose: float) -> float:
    """The dose that the kind is given; where nothing hides it, the dose itself."""
    return _SETTINGS.get(kind, _itself)(program, dose)


def _itself(program: Program, dose: float) -> float:
    del program
    return dose


def _garbage(program: Program, dose: float) -> float:
    """Collections, which are quicker here."""
    if not program.slack_ms:
        return dose
    return replace(program, slack_ms=program.slack_ms / HOT, step_ms=program.step_ms / HOT).exposed(dose)


def _hogs(program: Program, dose: float) -> float:
    """Hogs beside a loop that always wants its CPU take their share of it."""
    is_always_running = program.is_host_paced and program.workload == "train"
    return HOG_LOSS["block"] / 2 * dose / (1 - dose) if is_always_running else dose


def _spikes(program: Program, dose: float) -> float:
    """Spikes, of which each is hidden for as long as the queue is full."""
    slack_ms = 1000 * RUN_AHEAD_S / SPIKE_EVERY if program.slack_ms else 0.0
    return replace(program, slack_ms=slack_ms).exposed(dose)


def _interpreter(program: Program, dose: float) -> float:
    """A thread that wants the interpreter: what it leaves is all that the host part of each step has."""
    return max(0.05, 1 - program.host_share() * (1 - dose) - INTERPRETER_FREE)


def _stops(program: Program, dose: float) -> float:
    """Stops, which the queue outlasts for a while."""
    return dose + (RUN_AHEAD_S if program.slack_ms else 0.0)


def _copies(program: Program, dose: float) -> float:
    """Slower copies, which run beside the kernels if they have a stream of their own."""
    if "copy-stream" not in program.arguments:
        return dose
    return replace(program, slack_ms=program.slack_ms - COPY_MS).exposed(dose)


_SETTINGS: Mapping[str, Callable[[Program, float], float]] = MappingProxyType(
    {
        "sleep_in_loop": Program.exposed,
        "host_metrics": Program.exposed,
        "lock_hog": Program.exposed,
        "garbage": _garbage,
        "cpu_hog": _hogs,
        "noisy_neighbor": _hogs,
        "spike": _spikes,
        "gil_hog": _interpreter,
        "sigstop": _stops,
        "pcie_slow": _copies,
    }
)
