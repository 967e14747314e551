"""Shows answers of many nodes, and which nodes are missing."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ingero.cli.output import echo
from ingero.errors import IngeroError
from ingero.foreign_text import visible
from ingero.serve.structured.json_text import for_programs
from ingero.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingero.cli.fleet.options import Fleet
    from ingero.fleet.clocks import Clock
    from ingero.fleet.fan_out import Missing
    from ingero.fleet.known_nodes import Known

EXIT_PARTIAL = 3
_MAX_REASONS, _MAX_NAMES = 20, 8
_MAX_WARNINGS = 20
_MANY, _DIRECT_CPU_NS = 1_000, 2_400_000  # nodes, and of each (docs/adr/0051)


class NobodyAnsweredError(IngeroError):
    """No node answered."""


def nobody_answered(missing: Sequence[Missing]) -> NobodyAnsweredError:
    """The error with the reason of the first node; other reasons are printed first."""
    first = missing[0]
    head = f"none of {len(missing):,} nodes answered; {first.node}" if len(missing) > 1 else str(first.node)
    if len({node.reason for node in missing}) > 1:
        for line in _missing_lines(missing):
            echo(f"  {line}", err=True)
    return NobodyAnsweredError(f"{head}: {first.reason}", hint=first.hint)


def say_asking(fleet: Fleet) -> None:
    """Prints on standard error that nodes are queried, where a file and not the command line names them."""
    if fleet.origin:
        echo(f"querying the {len(fleet.nodes):,} nodes of {fleet.origin}; --db queries a recording", err=True)
    if len(fleet.nodes) > _MANY and fleet.reach.via is None:
        cpu = format_ns(len(fleet.nodes) * _DIRECT_CPU_NS)
        echo(
            f"note: asking {len(fleet.nodes):,} nodes directly takes about {cpu} of CPU here; --via shares it", err=True
        )


def say_missing(missing: Sequence[Missing], asked: int) -> None:
    """Prints the missing nodes on standard error, grouped by reason."""
    if not missing:
        return
    echo(f"partial: {len(missing):,} of {asked:,} nodes are missing", err=True)
    for line in _missing_lines(missing):
        echo(f"  {line}", err=True)


def say_clocks(clocks: Mapping[str, Clock], fleet: Fleet) -> None:
    """Prints warnings on standard error about clocks that are off, were set, or drift."""
    from ingero.fleet.clocks import warnings  # noqa: PLC0415  # only where nodes are asked

    found = list(warnings(clocks, fleet.skew_ns))
    for text in found[:_MAX_WARNINGS]:
        echo(f"warning: {visible(text)}", err=True)
    if len(found) > _MAX_WARNINGS:
        echo(f"and {len(found) - _MAX_WARNINGS:,} more warnings of clocks", err=True)


def say_known(fleet: Fleet, but: Collection[tuple[str, Known]] = ()) -> None:
    """Prints on standard error the nodes whose certificates were pinned, because this was their first query.

    but: (address, certificate) pairs that were printed already.
    """
    known = fleet.reach.access.known
    new_pins = [pin for pin in (known.kept.items() if known else ()) if pin not in but]
    for node, certificate in new_pins[:_MAX_REASONS]:
        echo(f"note: {node} is known from now on by its certificate, SHA-256 {certificate.fingerprint}", err=True)
    if known and len(new_pins) > _MAX_REASONS:
        echo(f"note: and {len(new_pins) - _MAX_REASONS:,} more; {known.path} has them all", err=True)


def clocks_json(clocks: Mapping[str, Clock]) -> list[dict[str, object]]:
    """The JSON of clocks: the offset of each from this host's clock, and its bounds."""
    return [{"node": node, **clock_json(clock)} for node, clock in clocks.items()]


def clock_json(clock: Clock) -> dict[str, object]:
    """The JSON of one clock; all times in ns."""
    return {
        "offset_ns": clock.offset_ns,
        "bound_ns": clock.bound_ns,
        "at_ns": clock.at_ns,
        "exchanges": clock.exchanges,
        "drift_ppm": clock.drift_ppm,
        "steps": [{"at_ns": step.at_ns, "by_ns": step.by_ns, "bound_ns": step.bound_ns} for step in clock.steps],
    }


def missing_json(missing: Sequence[Missing]) -> list[dict[str, str]]:
    """The JSON of missing nodes."""
    return [{"node": str(entry.node), "reason": entry.reason, "hint": entry.hint} for entry in missing]


def print_json(body: object) -> None:
    """Prints one JSON object on a line, without control characters."""
    sys.stdout.write(for_programs(msgspec.json.encode(body).decode()) + "\n")
    sys.stdout.flush()


def _missing_lines(missing: Sequence[Missing]) -> Iterator[str]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for entry in missing:
        by_reason.setdefault((entry.reason, entry.hint), []).append(str(entry.node))
    groups = sorted(by_reason.items(), key=lambda group: -len(group[1]))
    for (reason, hint), names in itertools.islice(groups, _MAX_REASONS):
        more = len(names) - _MAX_NAMES
        nodes = ", ".join(names[:_MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")
        yield f"{nodes}: {reason}" + (f" ({hint})" if hint else "")
    if len(groups) > _MAX_REASONS:
        yield f"and {len(groups) - _MAX_REASONS:,} other reasons"
