"""`ingero fleet`: collects what many nodes recorded around an incident."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from ingero.cli.command_group import CommandGroup
from ingero.cli.fleet.options import MERGE_SKEW, FleetFlags, FleetOptionError, configured_fleet, fleet_options
from ingero.cli.fleet.output import EXIT_PARTIAL, nobody_answered, say_asking, say_missing
from ingero.cli.moments import TimeOptionError, parse_time_ns
from ingero.cli.output import echo
from ingero.cli.progress import progress_bar
from ingero.diagnose.diagnosis import diagnose
from ingero.diagnose.findings import Incident
from ingero.foreign_text import shell_word, visible
from ingero.store.reader import open_reader
from ingero.store.records import Window
from ingero.units import format_bytes, format_counted, format_moment, parse_duration_s

if TYPE_CHECKING:
    from ingero.fleet.bundles import Bundle, Center, Fleet

_TIMEOUT = "60s"  # of a node: it diagnoses, then copies
_MARGIN = "60s"
_DAY_NS = 86_400_000_000_000


@click.group("fleet", cls=CommandGroup)
def command() -> None:
    """Collect what many nodes recorded around an incident.

    Each node runs `ingero dashboard`, or `ingero trace --serve`: docs/fleet.md.
    """


@command.command("bundle")
@click.option(
    "--around",
    required=True,
    metavar="INCIDENT",
    help="NODE: the worst incident on that node; NODE:2: its incident 2; or a time, such as 14:05.",
)
@click.option(
    "--margin", default=_MARGIN, metavar="D", help=f"Time to include before and after it. Default: {_MARGIN}."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="F",
    help="Recording to write.",
)
@click.option("--timeout", metavar="D", help=f"Wait this long for each node. Default: {_TIMEOUT}.")
@fleet_options
def bundle(around: str, margin: str, output: Path, timeout: str | None, fleet: FleetFlags) -> None:
    """Write what all nodes recorded around an incident into one file, to attach to a ticket.

    Passwords, tokens and keys are removed from command lines on the nodes. explain, query, dashboard and export work on
    the file.

    Exit code 3: nodes are missing.
    """
    margin_ns = int(parse_duration_s(margin) * 1e9)
    nodes = configured_fleet(fleet, timeout=timeout or _TIMEOUT, skew=MERGE_SKEW, environ=os.environ, uid=os.getuid())
    if nodes is None:
        raise FleetOptionError("no nodes are named", hint="--nodes gpu-01,gpu-02, or fleet.nodes in ingero.yaml")
    from ingero.cli.merge.skews import say_skews  # noqa: PLC0415  # needs what asks nodes
    from ingero.fleet.bundles import ask_fleet, make_bundle  # noqa: PLC0415  # as above
    from ingero.fleet.recordings import MAX_NODE_BYTES  # noqa: PLC0415  # as above

    say_asking(nodes)
    reach = nodes.reach
    answers = ask_fleet(reach)
    if not answers.explained:
        raise nobody_answered(answers.missing)
    center = _center(answers, around)
    with progress_bar() as progress:
        made = make_bundle(
            reach, answers, center, output, margin_ns=margin_ns, most_bytes=MAX_NODE_BYTES, progress=progress
        )
    say_skews(made.recording.clocks, nodes.skew_ns)
    for line in _summary(made, center, output):
        echo(line)
    say_missing(made.recording.missing, len(nodes.nodes))
    if made.recording.missing:
        sys.exit(EXIT_PARTIAL)


def _center(answers: Fleet, around: str) -> Center:
    from ingero.fleet.bundles import BundleError, Center, center_of, labels  # noqa: PLC0415  # as above
    from ingero.fleet.node_lists import listed  # noqa: PLC0415  # as above

    now_ns = time.time_ns()
    found = center_of(answers, around, now_ns)
    if found is not None:
        return found
    try:
        at_ns = parse_time_ns(around, Window(begin_ns=now_ns - _DAY_NS, end_ns=now_ns))
    except TimeOptionError as error:
        raise BundleError(
            f"--around: {around!r} is neither a node that answered nor a time",
            hint=f"{listed(labels(answers))}, one of these with :NUMBER; or 14:05, or unix seconds",
        ) from error
    return Center(window=Window(begin_ns=at_ns, end_ns=at_ns + 1))


def _summary(made: Bundle, center: Center, output: Path) -> Iterator[str]:
    nodes, window = made.recording.merged.nodes, made.window
    begin, end = (format_moment(at, of_ns=window.duration_ns) for at in (window.begin_ns, window.end_ns))
    yield f"{format_counted(len(nodes), 'node')} from {begin} to {end}: {', '.join(nodes)}"
    if center.incident is not None:
        node = center.incident.node or center.label
        yield f"incident {center.incident.number} of {node}: {visible(center.incident.headline)}"
        again = _found_in_bundle(output, node, center.incident.cause)
        if again is None:
            yield "note: explain does not find it in this file; a larger --margin takes more of what was before"
        elif again.summary != center.incident.headline:
            yield f"note: of this file explain says: {visible(again.summary)}"
    yield from (f"note: {note}" for note in made.recording.merged.notes)
    yield "secrets that were recognized are removed from command lines; check before you send it:"
    yield f'  ingero query --db {shell_word(output)} "SELECT DISTINCT node, pid, cmdline FROM processes"'
    yield f"{output} ({format_bytes(output.stat().st_size)})"


def _found_in_bundle(path: Path, node: str, cause: str) -> Incident | None:
    """The incident with this cause on this node in the diagnosis of the bundle; None if there is none."""
    with open_reader(path) as reader:
        window = reader.window(None, 0)
        found = diagnose(reader, window).incidents if window else ()
        is_only = len(reader.nodes()) < 2
    return next(
        (incident for incident in found if incident.cause == cause and (is_only or incident.node == node)), None
    )
