"""What was traced less in a window because tracing cost too much: since when, for how long, and why."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.store.reader import Reader
from ingero.store.records import GovernorStep, Window
from ingero.units import format_ns, format_time_of_day


def coverage_lines(reader: Reader, window: Window) -> Iterator[str]:
    """One line per stretch and thing given up; nothing where everything was traced."""
    if not reader.is_recorded("raw_governor"):
        return
    less = [(step, held) for step, held in held_steps(reader, window) if step.not_traced]
    if less:
        yield "Less was traced, because tracing had become too expensive:"
    for step, held in less:
        begin, length = format_time_of_day(step.time_ns), format_ns(held.duration_ns)
        for text in step.not_traced.splitlines():
            yield f"  since {begin}, for {length}: {text} ({step.reason})"


def held_steps(reader: Reader, window: Window) -> Iterator[tuple[GovernorStep, Window]]:
    """Each step with the part of the window that it held for: until the next of its recording, or until that ended."""
    steps = reader.governor_steps(window)
    stopped = {one.session: one.stopped_ns for one in reader.sessions()}
    for at, step in enumerate(steps):
        ends = [window.end_ns, stopped.get(step.session) or window.end_ns]
        ends += [one.time_ns for one in steps[at + 1 :] if one.session == step.session][:1]
        held = Window(begin_ns=max(step.time_ns, window.begin_ns), end_ns=min(ends))
        if held.duration_ns > 0:
            yield step, held
