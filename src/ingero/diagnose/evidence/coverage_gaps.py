"""Stretches of a recording in which something was not traced because that had become too expensive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ingero.given_up import given_up
from ingero.store.arrays.spans import joined
from ingero.store.records import OverheadLevel, Session, Window


@dataclass(frozen=True, slots=True)
class Gap:
    """One time range in which one thing was given up. text: what, as a sentence; evidence: what is missing for that."""

    window: Window
    text: str
    evidence: frozenset[str]


class Gaps:
    """The gaps of a window. sessions: those that touch it; what was given up in another has ended with that."""

    def __init__(self, steps: Sequence[OverheadLevel], sessions: Iterable[Session], window: Window) -> None:
        self._gaps: list[Gap] = []
        for step, held in held_steps(steps, sessions, window):
            missing = (given for given in given_up(step.not_traced) if given.evidence)
            self._gaps += [Gap(held, given.text, given.evidence) for given in missing]

    def of(self, needs: Iterable[str]) -> dict[str, tuple[Window, ...]]:
        """When some of these were missing, by the sentence that says what was given up; nothing where all was there."""
        wanted = frozenset(needs)
        found: dict[str, list[Window]] = {}
        for one in self._gaps:
            if one.evidence & wanted:
                found.setdefault(one.text, []).append(one.window)
        return {text: joined(windows) for text, windows in found.items()}

    def missing_ns(self, needs: Iterable[str], within: Iterable[Window]) -> int:
        """How much of these windows lacked some of what is needed."""
        return overlap_ns(joined([window for windows in self.of(needs).values() for window in windows]), within)


def held_steps(
    steps: Sequence[OverheadLevel], sessions: Iterable[Session], window: Window
) -> list[tuple[OverheadLevel, Window]]:
    """Each step with the part of the window that it held for: until the next of its session, or until that ended."""
    ends = {one.session: one.stopped_ns or one.last_seen_ns for one in sessions}
    found = []
    for step in reversed(steps):
        held = max(step.time_ns, window.begin_ns), min(ends.get(step.session, window.begin_ns), window.end_ns)
        ends[step.session] = step.time_ns
        if held[0] < held[1]:
            found.append((step, Window(begin_ns=held[0], end_ns=held[1])))
    return found[::-1]


def overlap_ns(gaps: Sequence[Window], within: Iterable[Window]) -> int:
    """How much of these windows gaps without overlaps take."""
    return sum(_shared_ns(gap, part) for part in within for gap in gaps)


def _shared_ns(one: Window, other: Window) -> int:
    return max(min(one.end_ns, other.end_ns) - max(one.begin_ns, other.begin_ns), 0)
