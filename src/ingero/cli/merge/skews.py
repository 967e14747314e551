"""Prints warnings about the clocks of the nodes of a merged recording."""

from __future__ import annotations

import itertools

from ingero.cli.output import echo
from ingero.fleet.merged_clocks import MergedClocks
from ingero.foreign_text import visible
from ingero.units import format_ns

_MAX_WARNINGS = 20


def say_skews(clocks: MergedClocks, threshold_ns: int) -> None:
    """Prints on standard error the clocks that were off by more than threshold_ns, their bounds, and unknown clocks."""
    found = list(itertools.islice(clocks.skews(threshold_ns), 10 * _MAX_WARNINGS))
    for line in found[:_MAX_WARNINGS]:
        echo(f"warning: {visible(line)}", err=True)
    if len(found) > _MAX_WARNINGS:
        echo(f"and {len(found) - _MAX_WARNINGS} more warnings of clocks", err=True)
    for compared in clocks.by_reference.values():
        if len(compared) > 1:
            worst_ns = max(clock.bound_ns for clock in compared.values())
            echo(f"clocks of {len(compared)} nodes compared, to {format_ns(worst_ns)}", err=True)
    if unknown := clocks.not_compared():
        echo(f"note: {visible(unknown)}", err=True)
