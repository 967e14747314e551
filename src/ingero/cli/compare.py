"""`ingero compare`: the differences of two recordings, before and after a fix."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import rich_click as click

from ingero.cli.config.option_table import OptionError, parse_percent
from ingero.cli.fleet.options import FleetFlags, FleetOptionError, configured_fleet, fleet_options, refuse_without_nodes
from ingero.cli.output import echo, echo_folded, echo_json
from ingero.cli.window_options import parse_since_ns, window_of
from ingero.diagnose.comparison.change_verdict import Verdict
from ingero.diagnose.comparison.compare import compare
from ingero.diagnose.comparison.regression import Outcome, regression_of
from ingero.program import command as own_command
from ingero.serve.text.comparison_text import comparison_json, comparison_lines
from ingero.serve.text.styled_lines import comparison_line
from ingero.store.reader import open_reader

EXIT_WORSE = 1
EXIT_REGRESSION, EXIT_UNDECIDED = 3, 4  # with --max-regression; with --nodes, 3 is EXIT_PARTIAL
_EXITS = {
    Outcome.PASSED: 0,
    Outcome.FAILED: EXIT_REGRESSION,
    Outcome.UNDECIDED: EXIT_UNDECIDED,
    Outcome.NOT_COMPARABLE: EXIT_UNDECIDED,
}

_NODE_TIMEOUT = "30s"  # as `explain`, which it asks for
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("compare")
@click.argument("before", type=_FILE, required=False)
@click.argument("after", type=_FILE, required=False)
@click.option("--since", metavar="D", help="Only the last 90s, 5m or 1h30m of each recording.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--max-regression",
    metavar="P",
    help="Fail if AFTER needs more than P (such as 5%) more time for the same work, "
    "or loses P points more of its time.",
)
@click.option("--timeout", metavar="D", help="With --nodes: wait this long for each node. Default: 30s.")
@fleet_options
def command(
    before: Path | None,
    after: Path | None,
    since: str | None,
    as_json: bool,
    max_regression: str | None,
    timeout: str | None,
    fleet: FleetFlags,
) -> None:
    """Compare two recordings: before and after a fix.

    With --nodes A,B, compare node B with node A; with more nodes, each with the first.

    Exit code 0: better, or no difference beyond noise, 1: worse, 2: error, 3: nodes are missing.

    With --max-regression, exit code 0: within the limit, 2: error, 3: worse than the limit and beyond noise, 4: cannot
    be decided, because the recordings are not comparable or their noise hides the limit.
    """
    limit_ratio = _limit(max_regression)
    if fleet.nodes:
        if limit_ratio is not None:
            raise FleetOptionError("--max-regression is for two recordings", hint="leave out --nodes, or the limit")
        if before is not None:
            raise FleetOptionError("--nodes and recordings exclude each other", hint="compare nodes, or recordings")
        from ingero.cli.fleet.compare import compare_fleet  # noqa: PLC0415  # needless for recordings

        nodes = configured_fleet(fleet, timeout=timeout or _NODE_TIMEOUT, environ=os.environ, uid=os.getuid())
        assert nodes is not None  # they were named
        sys.exit(compare_fleet(nodes, since=since or "", as_json=as_json))
    refuse_without_nodes(fleet)
    if before is None or after is None:
        example = own_command("compare", "A.db", "B.db")
        raise click.UsageError(f"two recordings are needed: {example}; or nodes: --nodes A,B")
    since_ns = parse_since_ns(since)
    with open_reader(before) as first, open_reader(after) as second:
        found = compare(first, window_of(first, since_ns=since_ns), second, window_of(second, since_ns=since_ns))
    judged = None if limit_ratio is None else regression_of(found, limit_ratio)
    if as_json:
        echo_json(comparison_json(found, judged))
    else:
        for line in comparison_lines(found):
            echo_folded(comparison_line(line))
        if judged:
            echo("")
            echo(judged.text)
    if judged:
        sys.exit(_EXITS[judged.outcome])
    if found.verdict is Verdict.WORSE:
        sys.exit(EXIT_WORSE)


def _limit(text: str | None) -> float | None:
    try:
        return None if text is None else parse_percent(text) / 100
    except OptionError as error:
        raise OptionError(f"--max-regression: {error}", hint=error.hint) from error
