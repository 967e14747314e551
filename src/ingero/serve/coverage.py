"""What was traced less in a window because tracing cost too much: since when, for how long, and why."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.store.reader import Reader
from ingero.store.records import Window
from ingero.units import format_ns, format_time_of_day


def coverage_lines(reader: Reader, window: Window) -> Iterator[str]:
    """One line per stretch and thing given up; nothing where everything was traced."""
    if not reader.is_recorded("raw_governor"):
        return
    steps = reader.governor_steps(window)
    ends = [*(step.time_ns for step in steps[1:]), window.end_ns]
    less = [(step, end_ns) for step, end_ns in zip(steps, ends, strict=False) if step.not_traced]
    if less:
        yield "Less was traced, because tracing had become too expensive:"
    for step, end_ns in less:
        begin = format_time_of_day(step.time_ns)
        length = format_ns(end_ns - max(step.time_ns, window.begin_ns))
        for text in step.not_traced.splitlines():
            yield f"  since {begin}, for {length}: {text} ({step.reason})"
