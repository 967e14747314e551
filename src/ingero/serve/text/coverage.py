"""Tracing that was reduced in a window to stay within the overhead limit: since when, for how long, and why."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.evidence.coverage_gaps import CoverageGaps, overhead_levels_in_force
from ingero.given_up import sentences
from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_ns, format_time_of_day


def unseen_ratio(reader: Reader, window: Window) -> float:
    """The share of a window in which launches, copies or events were not traced."""
    if not reader.is_recorded("raw_overhead_levels") or not window.duration_ns:
        return 0.0
    gaps = CoverageGaps(reader.overhead_levels(window), reader.sessions(), window)
    return gaps.missing_ns(("enqueues",), (window,)) / window.duration_ns


def coverage_lines(reader: Reader, window: Window) -> Iterator[str]:
    """One line per time range and reduced source; nothing where everything was traced."""
    if not reader.is_recorded("raw_overhead_levels"):
        return
    steps = overhead_levels_in_force(reader.overhead_levels(window), reader.sessions(), window)
    less = [(step, held) for step, held in steps if step.not_traced]
    if less:
        yield "Tracing was reduced to stay within the overhead limit:"
    for step, held in less:
        begin, length = format_time_of_day(step.time_ns), format_ns(held.duration_ns)
        for text in sentences(step.not_traced):
            yield f"  since {begin}, for {length}: {text} ({step.reason})"
