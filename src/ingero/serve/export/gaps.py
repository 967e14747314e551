"""Notes on what an export cannot show because the recording lacks it: that is neither "none" nor zero."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.program import command
from ingero.serve.text.gap_lines import not_traced
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_count

_KINDS = (
    ("raw_sync_intervals", "sync intervals of the GPU"),
    ("raw_in_flight", "in-flight calls"),
    ("raw_thread_state_seconds", "the states of threads per second"),
    ("raw_communicators", "NCCL communicators"),
    ("raw_incidents", "incidents"),
    ("raw_drops", "drops"),
)


def gap_lines(reader: Reader, window: Window) -> Iterator[str]:
    """One line per reason."""
    missing = [text for table, text in _KINDS if not reader.is_recorded(table)]
    if missing:
        yield f"not recorded by Ingero {reader.older_version}: {', '.join(missing)}, which thread woke which"
    if reader.missing_end:
        yield f"the file lacks {reader.missing_end}"
    yield from _not_traced(reader, window)
    yield from _selection(reader, window)
    removed = [
        pruned_rows
        for pruned_rows in reader.pruned()
        if pruned_rows.kind == "removed" and pruned_rows.until_ns > window.begin_ns
    ]
    if removed:
        yield f"removed to stay below --max-db: the older {', '.join(one.name for one in removed)}"


def _not_traced(reader: Reader, window: Window) -> Iterator[str]:
    for why, sources in not_traced(reader, window).items():
        yield f"not traced: {', '.join(sources)}: {why}"


def _selection(reader: Reader, window: Window) -> Iterator[str]:
    totals = reader.op_totals(window)
    calls, recorded = sum(total.count for total in totals), sum(total.recorded for total in totals)
    if recorded < calls and reader.has_exact_totals:
        yield (
            f"{format_count(recorded)} of {format_count(calls)} calls have a row of their own and are shown; the rest "
            f"are in the sums (`{command('explain')}`)"
        )
