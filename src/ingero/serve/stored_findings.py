"""What tracing itself found and stored: its incidents, or the chains of an older Ingero."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_ns, format_percent


def stored_lines(reader: Reader, window: Window) -> Iterator[str]:
    """A line or two each, oldest first."""
    count = 0
    for one in reader.incidents(window) if reader.is_recorded("incidents") else ():
        count += 1
        ended = "goes on" if one.end_ns is None else f"until {_moment(one.end_ns)}"
        lost = f", lost {format_ns(one.lost_ns)} ({format_percent(one.lost_ratio or 0)})" if one.lost_ns else ""
        yield f"{_moment(one.start_ns)}  {one.severity}  {one.cause}  {ended}{lost}"
        yield f"  {one.summary}"
    for chain in () if count else reader.causal_chains(window):
        count += 1
        yield f"{_moment(chain.detected_ns)}  {chain.severity}  {chain.root_cause}"
        yield f"  {chain.summary}"
    if not count:
        yield "Nothing was found while this was recorded."


def _moment(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ns / 1e9))
