"""`ingero demo`: show causes of lost GPU time, each with the verdict of the engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import rich_click as click
from rich.console import Console

from ingero.cli.config.value_words import starting_with
from ingero.cli.output import is_colored
from ingero.demo.machine import chosen_machine
from ingero.demo.player import play
from ingero.demo.scenarios import ALIASES, SCENARIOS, scenario_of
from ingero.demo.screen import Screen
from ingero.errors import IngeroError

EXIT_WRONG_VERDICT = 1
_OTHER_NAMES = sorted(ALIASES.keys() - {scenario.name for scenario in SCENARIOS})


class ContradictionError(IngeroError):
    """Two options exclude each other."""


@click.command(
    "demo", epilog=f"Demos: {', '.join(scenario.name for scenario in SCENARIOS)}; also {', '.join(_OTHER_NAMES)}."
)
@click.argument(
    "name", required=False, shell_complete=starting_with((*(scenario.name for scenario in SCENARIOS), *_OTHER_NAMES))
)
@click.option("--no-gpu", is_flag=True, help="Use scripted recordings: no root, no probes, no compiler.")
@click.option("--gpu", is_flag=True, help="Run on the real GPU, with PyTorch or CuPy (needs root).")
@click.option("--breakdown", is_flag=True, help="Also show the time breakdown, as explain does.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Keep the recordings in this folder.",
)
def command(name: str | None, no_gpu: bool, gpu: bool, breakdown: bool, keep: Path | None) -> None:
    """Demonstrate causes of lost GPU time, with the verdict on each.

    Without NAME, all six are shown.
    """
    if no_gpu and gpu:
        raise ContradictionError("--gpu and --no-gpu exclude each other", hint="give one of them, or neither")
    scenarios = (scenario_of(name),) if name else SCENARIOS
    # its escapes that move the cursor are for a terminal alone, whatever FORCE_COLOR says of colors
    color_system: Literal["standard"] | None = "standard" if is_colored(sys.stdout) else None
    screen = Screen(Console(force_terminal=sys.stdout.isatty(), color_system=color_system, highlight=False))
    machine = chosen_machine(wants_gpu=gpu, without_gpu=no_gpu)
    screen.machine(machine)
    right = [play(scenario, machine, screen, keep=keep, with_breakdown=breakdown) for scenario in scenarios]
    if not all(right):
        wrong = [scenario.name for scenario, is_right in zip(scenarios, right, strict=True) if not is_right]
        screen.say(f"wrong verdict: {', '.join(wrong)}")
        sys.exit(EXIT_WRONG_VERDICT)
