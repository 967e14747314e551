"""`ingero compare`: what is different between two recordings, before and after a fix."""

from __future__ import annotations

import sys
from pathlib import Path

import rich_click as click

from ingero.cli.output import echo, echo_json
from ingero.cli.window_options import parse_since_ns, window_of
from ingero.diagnose.change_verdict import Verdict
from ingero.diagnose.comparison import compare
from ingero.serve.comparison_text import comparison_json, comparison_lines
from ingero.store.reader import open_reader

EXIT_WORSE = 1

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("compare")
@click.argument("before", type=_FILE)
@click.argument("after", type=_FILE)
@click.option("--since", metavar="D", help="Only the last 90s, 5m, 1h30m of each.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(before: Path, after: Path, since: str | None, as_json: bool) -> None:
    """Say what is different between two recordings: before and after a fix.

    Exit code 0: better or no difference beyond noise, 1: worse, 2: an error.
    """
    since_ns = parse_since_ns(since)
    with open_reader(before) as first, open_reader(after) as second:
        found = compare(first, window_of(first, since_ns=since_ns), second, window_of(second, since_ns=since_ns))
    if as_json:
        echo_json(comparison_json(found))
    else:
        for line in comparison_lines(found):
            echo(line)
    if found.verdict is Verdict.WORSE:
        sys.exit(EXIT_WORSE)
