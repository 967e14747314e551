"""`ingero merge`: merges recordings of several nodes into one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import rich_click as click

from ingero.cli.config.option_table import OptionError, is_node_name
from ingero.cli.fleet.options import MERGE_SKEW
from ingero.cli.output import echo
from ingero.cli.progress import progress_bar
from ingero.store.merge import Merged, merge
from ingero.units import format_bytes, format_count, format_counted, parse_duration_s

# The words of the summary by table, and the tables that it names even where they are empty.
_SHOWN = {
    "raw_events": "events",
    "raw_causal_chains": "chains",
    "raw_stacks": "stacks",
    "raw_incidents": "incidents",
    "raw_sync_intervals": "sync intervals",
    "raw_steps": "steps",
}
_ALWAYS_SHOWN = ("raw_events", "raw_causal_chains", "raw_stacks")


@click.command("merge")
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="F",
    help="Recording to write.",
)
@click.option("--force-node", metavar="N", default="", help="Node name for recordings without one (Ingero 0.8).")
@click.option(
    "--clock-skew-threshold",
    metavar="D",
    default=MERGE_SKEW,
    help=f"Warn about clocks that are off by more than this, where recordings say it. Default: {MERGE_SKEW}.",
)
def command(sources: tuple[Path, ...], output: Path, force_node: str, clock_skew_threshold: str) -> None:
    """Merge the recordings of several nodes into one.

    Recordings of Ingero 0.8 to 0.17 are accepted as well. Sources are only read; sessions in more than one of them are
    taken once. explain, query, dashboard, mcp and export work on the result; each node is diagnosed on its own.
    """
    skew_ns = int(parse_duration_s(clock_skew_threshold) * 1e9)
    from ingero.cli.merge.skews import say_skews  # noqa: PLC0415  # --help need not wait for it
    from ingero.fleet.merged_clocks import merged_clocks  # noqa: PLC0415  # as above
    from ingero.store.reader import open_reader  # noqa: PLC0415  # as above

    if force_node and not is_node_name(force_node):
        raise OptionError(
            f"--force-node: {force_node!r} is not a valid node name", hint="use letters, digits, dots and dashes"
        )
    with progress_bar() as progress:
        merged = merge(sources, output, force_node=force_node, progress=progress)
    with open_reader(output) as reader:
        say_skews(merged_clocks(reader), skew_ns)
    for line in _summary(merged, len(sources), output):
        echo(line)


def _summary(merged: Merged, files: int, output: Path) -> Iterator[str]:
    parts = [
        f"{format_count(merged.rows.get(table, 0))} {name}"
        for table, name in _SHOWN.items()
        if table in _ALWAYS_SHOWN or merged.rows.get(table)
    ]
    yield f"{format_counted(files, 'recording')} merged: {', '.join(parts)}"
    yield f"{format_counted(len(merged.nodes), 'node')}: {', '.join(merged.nodes)}"
    if merged.repeated:
        yield f"{format_counted(merged.repeated, 'session')} found in more than one file: taken once"
    for note in merged.notes:
        yield f"note: {note}"
    yield f"{output} ({format_bytes(output.stat().st_size)})"
