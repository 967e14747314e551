"""`ingero check --nodes`: the nodes that can be queried, those that record, and their problems."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime, timezone

from ingero.cli.fleet.options import Fleet
from ingero.cli.fleet.output import (
    EXIT_PARTIAL,
    clock_json,
    missing_json,
    nobody_answered,
    print_json,
    say_asking,
    say_known,
    say_missing,
)
from ingero.cli.output import echo
from ingero.cli.result_table import table_lines
from ingero.fleet.clocks import Clock
from ingero.fleet.fan_out import ask_nodes
from ingero.fleet.node_checks import Checked, FleetCheck, ask_state, fleet_check
from ingero.foreign_text import visible
from ingero.units import format_ns

EXIT_NOT_READY = 1
_VERSION = 1
_COLUMNS = ("node", "address", "version", "recording", "clock", "certificate until")


def check_fleet(fleet: Fleet, *, as_json: bool) -> int:
    """Prints the state of each node; returns the exit code.

    Raises:
        NobodyAnsweredError: no node has answered.
    """
    say_asking(fleet)
    answered = ask_nodes(fleet.reach, ask_state)
    found = fleet_check(answered, skew_ns=fleet.skew_ns, now=datetime.now(timezone.utc))
    is_ready = not found.missing and not found.notes and not any(node.problems for node in found.nodes)
    if as_json:
        print_json(_json(found, is_ready=is_ready))
    if not found.nodes:
        raise nobody_answered(found.missing)
    if not as_json:
        _print(found)
    say_known(fleet)
    say_missing(found.missing, len(fleet.nodes))
    if found.missing:
        return EXIT_PARTIAL
    return 0 if is_ready else EXIT_NOT_READY


def _print(found: FleetCheck) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in table_lines(_COLUMNS, [_row(node) for node in found.nodes], width):
        echo(line)
    echo("")
    for node in found.nodes:
        for problem in node.problems:
            echo(f"{node.name}: {problem}")
    for note in found.notes:
        echo(visible(note))
    good = sum(not node.problems for node in found.nodes)
    echo(f"{good} of {len(found.nodes) + len(found.missing)} nodes record and can be asked")


def _row(node: Checked) -> tuple[str, ...]:
    until = node.state.certificate_until
    return (
        node.name,
        str(node.node),
        node.state.version or "not known",
        "not readable" if node.state.error else "yes" if node.state.is_recording else "no",
        _clock(node.clock),
        "" if until is None else f"{datetime.fromtimestamp(until, timezone.utc):%Y-%m-%d}",
    )


def _clock(clock: Clock | None) -> str:
    if clock is None:
        return "not known"
    sign = "+" if clock.offset_ns >= 0 else "-"
    return f"{sign}{format_ns(abs(clock.offset_ns))} (to {format_ns(clock.bound_ns)})"


def _json(found: FleetCheck, *, is_ready: bool) -> dict[str, object]:
    return {
        "version": _VERSION,
        "ready": is_ready,
        "nodes": [
            {
                "node": node.name,
                "address": str(node.node),
                "ingero_version": node.state.version or None,
                "is_recording": node.state.is_recording,
                "error": node.state.error or None,
                "certificate_until": node.state.certificate_until,
                "clock": clock_json(node.clock) if node.clock else None,
                "problems": node.problems,
            }
            for node in found.nodes
        ],
        "partial": bool(found.missing),
        "missing": missing_json(found.missing),
        "notes": found.notes,
    }
