"""Stretches of a recording in which something was not traced because that had become too expensive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ingero.given_up import EVIDENCE
from ingero.store.records import GovernorStep, Session, Window


@dataclass(frozen=True, slots=True)
class Gap:
    """One stretch in which one thing was given up. text: what, as a sentence; evidence: what is missing for that."""

    window: Window
    text: str
    evidence: frozenset[str]


class Gaps:
    """The gaps of a window. A step holds until the next one of its session, or until that ends.

    sessions: those that touch the window; what was given up in another has ended with it.
    """

    def __init__(self, steps: Sequence[GovernorStep], sessions: Iterable[Session], window: Window) -> None:
        stopped = {one.session: one.stopped_ns or one.last_seen_ns for one in sessions}
        self._gaps: list[Gap] = []
        for at, step in enumerate(steps):
            ends = [window.end_ns, stopped.get(step.session, window.begin_ns)]
            ends += [one.time_ns for one in steps[at + 1 :] if one.session == step.session][:1]
            begin, end = max(step.time_ns, window.begin_ns), min(ends)
            if begin < end:
                lost = ((text, EVIDENCE.get(text, frozenset())) for text in step.not_traced.splitlines())
                held = Window(begin_ns=begin, end_ns=end)
                self._gaps += [Gap(held, text, evidence) for text, evidence in lost if evidence]

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


def joined(windows: Iterable[Window]) -> tuple[Window, ...]:
    """The same time without overlaps, in order; one window where one follows the other at once."""
    found: list[Window] = []
    for one in sorted(windows, key=lambda one: one.begin_ns):
        if found and one.begin_ns <= found[-1].end_ns:
            end_ns = max(found[-1].end_ns, one.end_ns)
            found[-1] = Window(begin_ns=found[-1].begin_ns, end_ns=end_ns)
        else:
            found.append(one)
    return tuple(found)


def overlap_ns(gaps: Sequence[Window], within: Iterable[Window]) -> int:
    """How much of these windows gaps without overlaps take."""
    return sum(_shared_ns(gap, part) for part in within for gap in gaps)


def _shared_ns(one: Window, other: Window) -> int:
    return max(min(one.end_ns, other.end_ns) - max(one.begin_ns, other.begin_ns), 0)
