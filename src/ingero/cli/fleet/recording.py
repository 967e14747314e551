"""Fetches the recordings of many nodes and merges them into a temporary file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero.cli.fleet.options import Fleet
from ingero.cli.fleet.output import EXIT_PARTIAL, nobody_answered, say_asking, say_missing
from ingero.cli.merge.skews import say_skews
from ingero.cli.moments import parse_time_ns
from ingero.cli.output import echo
from ingero.cli.progress import progress_bar
from ingero.fleet.recordings import MAX_NODE_BYTES, FleetRecording, fetch_since, fetch_span, merge_parts
from ingero.store.records import Window

NAME = "nodes"
_DAY_NS = 86_400_000_000_000


@contextmanager
def fetched_recording(
    fleet: Fleet, *, since: str | None, begin: str | None, end: str | None
) -> Iterator[tuple[Path, int]]:
    """The path of a merged recording of all nodes, and the exit code.

    Raises:
        NobodyAnsweredError: no node sent its recording.
    """
    say_asking(fleet)
    with tempfile.TemporaryDirectory(prefix="ingero-nodes-") as folder:
        path = Path(folder) / f"{NAME}.db"
        found = _fetched(fleet, path, since=since, begin=begin, end=end)
        say_skews(found.clocks, fleet.skew_ns)
        for note in found.merged.notes:
            echo(f"note: {note}", err=True)
        say_missing(found.missing, len(fleet.nodes))
        yield path, EXIT_PARTIAL if found.missing else 0


def _fetched(fleet: Fleet, path: Path, *, since: str | None, begin: str | None, end: str | None) -> FleetRecording:
    reach, folder = fleet.reach, path.parent
    if begin or end:
        now_ns = time.time_ns()
        recorded = Window(begin_ns=now_ns - _DAY_NS, end_ns=now_ns)
        span = Window(
            begin_ns=parse_time_ns(begin, recorded) if begin else 0,
            end_ns=parse_time_ns(end, recorded) if end else 2**63 - 1,
        )
        answer = fetch_span(reach, folder, lambda _: span, most_bytes=MAX_NODE_BYTES)
    else:
        answer = fetch_since(reach, folder, since or "", most_bytes=MAX_NODE_BYTES)
    if not answer.answered:
        raise nobody_answered(answer.missing)
    with progress_bar() as progress:
        return merge_parts(answer, path, progress=progress)
