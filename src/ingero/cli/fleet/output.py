"""How answers of many nodes are shown, and what is missing of them."""

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
_MOST_REASONS, _MOST_NAMES = 20, 8
_MOST_WARNINGS = 20
_MANY, _DIRECT_CPU_NS = 1_000, 2_400_000  # nodes, and of each (docs/adr/0051)


class NobodyAnsweredError(IngeroError):
    """No node answered."""


def nobody_answered(missing: Sequence[Missing]) -> NobodyAnsweredError:
    """The error, with the reason of the first; those of the others are said before."""
    first = missing[0]
    of = f"none of {len(missing):,} nodes answered; {first.node}" if len(missing) > 1 else str(first.node)
    if len({one.reason for one in missing}) > 1:
        for line in _missing_lines(missing):
            echo(f"  {line}", err=True)
    return NobodyAnsweredError(f"{of}: {first.reason}", hint=first.hint)


def say_asking(fleet: Fleet) -> None:
    """Says on standard error that nodes are asked, where a file and not the command line names them."""
    if fleet.origin:
        echo(f"querying the {len(fleet.nodes):,} nodes of {fleet.origin}; --db queries a recording", err=True)
    if len(fleet.nodes) > _MANY and fleet.reach.via is None:
        cpu = format_ns(len(fleet.nodes) * _DIRECT_CPU_NS)
        echo(
            f"note: asking {len(fleet.nodes):,} nodes directly takes about {cpu} of CPU here; --via shares it", err=True
        )


def say_missing(missing: Sequence[Missing], asked: int) -> None:
    """Which nodes are missing, on standard error: those of one reason together."""
    if not missing:
        return
    echo(f"partial: {len(missing):,} of {asked:,} nodes are missing", err=True)
    for line in _missing_lines(missing):
        echo(f"  {line}", err=True)


def say_clocks(clocks: Mapping[str, Clock], fleet: Fleet) -> None:
    """Which clocks are off, on standard error, and for which nodes a clock was set or drifts."""
    from ingero.fleet.clocks import warnings  # noqa: PLC0415  # only where nodes are asked

    found = list(warnings(clocks, fleet.skew_ns))
    for text in found[:_MOST_WARNINGS]:
        echo(f"warning: {visible(text)}", err=True)
    if len(found) > _MOST_WARNINGS:
        echo(f"and {len(found) - _MOST_WARNINGS:,} more warnings of clocks", err=True)


def say_known(fleet: Fleet, but: Collection[tuple[str, Known]] = ()) -> None:
    """Which nodes are believed from now on, because they were asked for the first time, on standard error.

    but: what is said already, by address.
    """
    known = fleet.reach.access.known
    kept = [one for one in (known.kept.items() if known else ()) if one not in but]
    for node, certificate in kept[:_MOST_REASONS]:
        echo(f"note: {node} is known from now on by its certificate, SHA-256 {certificate.fingerprint}", err=True)
    if known and len(kept) > _MOST_REASONS:
        echo(f"note: and {len(kept) - _MOST_REASONS:,} more; {known.path} has them all", err=True)


def clocks_json(clocks: Mapping[str, Clock]) -> list[dict[str, object]]:
    """For programs: by how much each is ahead of this machine's, and how far that may be off."""
    return [{"node": node, **clock_json(clock)} for node, clock in clocks.items()]


def clock_json(clock: Clock) -> dict[str, object]:
    """One of them; all times in ns."""
    return {
        "offset_ns": clock.offset_ns,
        "bound_ns": clock.bound_ns,
        "at_ns": clock.at_ns,
        "exchanges": clock.exchanges,
        "drift_ppm": clock.drift_ppm,
        "steps": [{"at_ns": one.at_ns, "by_ns": one.by_ns, "bound_ns": one.bound_ns} for one in clock.steps],
    }


def missing_json(missing: Sequence[Missing]) -> list[dict[str, str]]:
    """The same for programs."""
    return [{"node": str(one.node), "reason": one.reason, "hint": one.hint} for one in missing]


def print_json(body: object) -> None:
    """One object on a line; nothing in it acts on a terminal."""
    sys.stdout.write(for_programs(msgspec.json.encode(body).decode()) + "\n")
    sys.stdout.flush()


def _missing_lines(missing: Sequence[Missing]) -> Iterator[str]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for one in missing:
        by_reason.setdefault((one.reason, one.hint), []).append(str(one.node))
    groups = sorted(by_reason.items(), key=lambda group: -len(group[1]))
    for (reason, hint), names in itertools.islice(groups, _MOST_REASONS):
        more = len(names) - _MOST_NAMES
        who = ", ".join(names[:_MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")
        yield f"{who}: {reason}" + (f" ({hint})" if hint else "")
    if len(groups) > _MOST_REASONS:
        yield f"and {len(groups) - _MOST_REASONS:,} other reasons"
