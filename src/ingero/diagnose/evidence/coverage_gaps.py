"""Coverage gaps: time ranges of a recording in which tracing was reduced because it had become too expensive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ingero.given_up import given_up
from ingero.store.arrays.spans import joined
from ingero.store.records import OverheadLevel, Session, Window


@dataclass(frozen=True, slots=True)
class CoverageGap:
    """A time range in which something was not traced. text: what, as a sentence; evidence: what is missing then."""

    window: Window
    text: str
    evidence: frozenset[str]


class CoverageGaps:
    """The coverage gaps of a window. sessions: those that touch the window; a gap ends with its session."""

    def __init__(self, levels: Sequence[OverheadLevel], sessions: Iterable[Session], window: Window) -> None:
        self._gaps: list[CoverageGap] = []
        for level, in_force in overhead_levels_in_force(levels, sessions, window):
            missing = (given for given in given_up(level.not_traced) if given.evidence)
            self._gaps += [CoverageGap(in_force, given.text, given.evidence) for given in missing]

    def of(self, needs: Iterable[str]) -> dict[str, tuple[Window, ...]]:
        """The times at which some of these needs were missing, by the sentence about what was not traced."""
        wanted = frozenset(needs)
        found: dict[str, list[Window]] = {}
        for gap in self._gaps:
            if gap.evidence & wanted:
                found.setdefault(gap.text, []).append(gap.window)
        return {text: joined(windows) for text, windows in found.items()}

    def missing_ns(self, needs: Iterable[str], within: Iterable[Window]) -> int:
        """The time in these windows without some of these needs, ns."""
        return overlap_ns(joined([window for windows in self.of(needs).values() for window in windows]), within)


def overhead_levels_in_force(
    levels: Sequence[OverheadLevel], sessions: Iterable[Session], window: Window
) -> list[tuple[OverheadLevel, Window]]:
    """Each overhead level with its part of the window: until the next level of its session, or the session's end."""
    ends = {session.session: session.stopped_ns or session.last_seen_ns for session in sessions}
    found = []
    for level in reversed(levels):
        begin_ns = max(level.time_ns, window.begin_ns)
        end_ns = min(ends.get(level.session, window.begin_ns), window.end_ns)
        ends[level.session] = level.time_ns
        if begin_ns < end_ns:
            found.append((level, Window(begin_ns=begin_ns, end_ns=end_ns)))
    return found[::-1]


def overlap_ns(gaps: Sequence[Window], within: Iterable[Window]) -> int:
    """The time that gaps, which do not overlap each other, take of these windows, ns."""
    return sum(_shared_ns(gap, part) for part in within for gap in gaps)


def _shared_ns(one: Window, other: Window) -> int:
    return max(min(one.end_ns, other.end_ns) - max(one.begin_ns, other.begin_ns), 0)
