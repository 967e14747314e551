"""Text about gaps in a window of a recording: data not traced, pruned or dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_bytes, format_counter, format_moment

_SOURCE_TEXTS = {
    "IO": "block I/O",
    "TCP": "TCP retransmits",
    "NET": "bytes on sockets",
    "NCCL": "NCCL calls",
    "GPU": "GPU utilization, clocks and memory",
    "python_lines": "Python lines of calls that returned within 2 s",
}


def not_traced_lines(reader: Reader, window: Window) -> Iterator[str]:
    """Sources that were not traced at all: their absence is not a zero."""
    by_reason = not_traced(reader, window)
    for why, sources in by_reason.items():
        yield f"not traced: {', '.join(_SOURCE_TEXTS.get(source, source) for source in sources)}: {why}"
    if by_reason:
        yield ""


def not_traced(reader: Reader, window: Window) -> dict[str, list[str]]:
    """Sources that were not traced at all, by reason."""
    found: dict[str, list[str]] = {}
    for session in reader.sessions():
        if session.started_ns < window.end_ns and (session.stopped_ns or session.last_seen_ns) >= window.begin_ns:
            for source, why in json.loads(session.not_traced).items():
                sources = found.setdefault(why, [])
                if source not in sources:
                    sources.append(source)
    return found


def pruned_lines(reader: Reader, window: Window) -> Iterator[str]:
    """Lines about rows that the size limit has pruned or downsampled in the window."""
    pruned = [pruned_rows for pruned_rows in reader.pruned() if pruned_rows.until_ns > window.begin_ns]
    for kind, text in (("removed", "pruned"), ("folded", "downsampled to minutes")):
        mine = [pruned_rows for pruned_rows in pruned if pruned_rows.kind == kind]
        if mine:
            limit = format_bytes(max(mine, key=lambda one: one.noted_ns).max_db_bytes)
            parts = ", ".join(f"{one.name} before {format_moment(one.until_ns)}" for one in mine)
            yield f"{text}, to stay below --max-db ({limit}): {parts}"


def drop_lines(reader: Reader, window: Window) -> Iterator[str]:
    """Lines about dropped or corrected data, with the reason."""
    drops = reader.drops(window)
    if not drops:
        yield "No data was dropped while recording."
        return
    yield "DROPPED or corrected while recording:"
    for drop in drops:
        amount = format_counter(drop.counter, drop.count)
        yield f"  {amount:>12}  {drop.reason or drop.counter}"
