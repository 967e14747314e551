"""What tracing itself found and stored: its incidents, or the chains of an older Ingero."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_moment, format_ns, format_percent


def stored_lines(reader: Reader, window: Window) -> Iterator[str]:
    """A line or two each, oldest first."""
    count = 0
    for one in reader.incidents(window) if reader.is_recorded("incidents") else ():
        count += 1
        ended = "goes on" if one.end_ns is None else f"until {format_moment(one.end_ns)}"
        lost = f", lost {format_ns(one.lost_ns)} ({format_percent(one.lost_ratio or 0)})" if one.lost_ns else ""
        yield f"{format_moment(one.start_ns)}  {one.severity}  {one.cause}  {ended}{lost}"
        yield f"  {one.summary}"
    for chain in () if count else reader.causal_chains(window):
        count += 1
        yield f"{format_moment(chain.detected_ns)}  {chain.severity}  {chain.root_cause}"
        yield f"  {chain.summary}"
    if not count:
        yield "Nothing was found while this was recorded."
