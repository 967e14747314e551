"""What a merged recording says of the clocks of its nodes, on standard error, before all else."""

from __future__ import annotations

import itertools

from ingero.cli.output import echo
from ingero.fleet.merged_clocks import MergedClocks
from ingero.foreign_text import visible
from ingero.units import format_ns

_MOST_WARNINGS = 20


def say_skews(clocks: MergedClocks, threshold_ns: int) -> None:
    """Which clocks were off by more than that, how well those are known that were compared, and which were not."""
    found = list(itertools.islice(clocks.skews(threshold_ns), 10 * _MOST_WARNINGS))
    for line in found[:_MOST_WARNINGS]:
        echo(f"warning: {visible(line)}", err=True)
    if len(found) > _MOST_WARNINGS:
        echo(f"and {len(found) - _MOST_WARNINGS} more warnings of clocks", err=True)
    for compared in clocks.by_reference.values():
        if len(compared) > 1:
            worst_ns = max(clock.bound_ns for clock in compared.values())
            echo(f"clocks of {len(compared)} nodes compared, to {format_ns(worst_ns)}", err=True)
    if unknown := clocks.not_compared():
        echo(f"note: {visible(unknown)}", err=True)
