"""Clocks of the nodes of a merged recording: how far apart they were, and the order of incidents that this proves.

Two things relate clocks. The host that fetched recordings compared each node's clock with its own: offsets of one such
comparison (a reference) are relative to one clock. And sessions of one boot of a host share one CLOCK_MONOTONIC, even
if the wall clock was set meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ingero.diagnose.findings import Incident
from ingero.fleet.clocks import EXCHANGES, Clock, drift_ns, warnings
from ingero.fleet.known_order import are_in_order
from ingero.fleet.node_lists import listed
from ingero.serve.boot_clock import Timeline, timelines
from ingero.store.reader import Reader
from ingero.store.records import NodeClock
from ingero.units import SECOND_NS, format_moment, format_ns

_AROUND_NS = 60_000_000_000  # how far from a clock pair times can be converted
_MAX_NAMES = 8


class Axis(NamedTuple):
    """A clock common to several nodes: that of a comparison, or that of one boot of a host."""

    is_boot: bool
    name: str

    @property
    def text(self) -> str:
        """Description of the clock."""
        return "the clock of the host that all are on" if self.is_boot else "the clock that all were compared with"


AxisTimes = Mapping[Axis, tuple[int, int]]
"""Unix ns by each clock that is known, and how far that may be off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClock:
    """The clocks of one session. boot_id: "" if not known. timeline: None if it holds no clock pairs."""

    node: str
    boot_id: str
    started_ns: int
    last_seen_ns: int
    timeline: Timeline | None
    comparisons: tuple[NodeClock, ...]

    def is_of_boot_of(self, other: SessionClock) -> bool:
        """Whether both have one CLOCK_MONOTONIC."""
        return self is other or (bool(self.boot_id) and self.boot_id == other.boot_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An incident and when it began: Unix ns, within bound_ns.

    is_known: whether it is known to have begun after all incidents before it; on one node that needs no bound.
    """

    incident: Incident
    start_ns: int
    bound_ns: int
    is_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlaced:
    """An incident whose time is not known. reason: why."""

    incident: Incident
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOrder:
    """Incidents in order of time. placed: earliest first. axis: the clock used; None: no clock covers two nodes."""

    axis: Axis | None
    placed: tuple[Placed, ...]
    not_placed: tuple[NotPlaced, ...]


class MergedClocks:
    """The clocks of the nodes of a recording."""

    def __init__(self, sessions: Sequence[SessionClock]) -> None:
        self.sessions = sessions

    @property
    def by_reference(self) -> dict[str, dict[str, Clock]]:
        """Clock offsets by comparison and node; the last one if there were several."""
        found: dict[str, dict[str, Clock]] = {}
        for session in self.sessions:
            for its in session.comparisons:
                clock = Clock(offset_ns=its.offset_ns, bound_ns=its.bound_ns, at_ns=its.at_ns, exchanges=EXCHANGES)
                found.setdefault(its.reference, {})[session.node] = clock
        return found

    def skews(self, threshold_ns: int) -> Iterator[str]:
        """Clocks that are off by more than a threshold, one sentence each."""
        for clocks in self.by_reference.values():
            yield from warnings(clocks, threshold_ns, ours="the host that they were compared with")
        by_boot: dict[str, list[SessionClock]] = {}
        for place, one in enumerate(self.sessions):
            by_boot.setdefault(one.boot_id or f"session {place}", []).append(one)
        for mine in by_boot.values():
            yield from _contradictions(mine, threshold_ns)

    def not_compared(self) -> str:
        """A sentence naming the nodes whose clock offsets are unknown; "" if all are known."""
        groups = self._related()
        if len(groups) < 2:
            return ""
        alone = sorted(node for group in groups for node in group if len(group) == 1)
        if len(alone) == len(groups):
            return f"the clocks of the {len(groups)} nodes were not compared: times are those of each node"
        largest = max(groups, key=len)
        others = sorted(node for group in groups if group is not largest for node in group)
        return (
            f"the clocks of {listed(others, most=_MAX_NAMES)} were not compared with those of the others: their times "
            "are those of each node"
        )

    def in_order(self, incidents: Sequence[Incident]) -> IncidentOrder:
        """Order incidents by when they began, on the clock that covers most nodes."""
        found = [(incident, self._axis_times(incident)) for incident in incidents]
        axis = _best(found)
        timed = [(moments[axis], one) for one, moments in found if axis is not None and axis in moments]
        timed.sort(key=lambda each: (each[0], each[1].node))
        known = are_in_order((*moment, one.node) for moment, one in timed)
        return IncidentOrder(
            axis=axis,
            placed=tuple(
                Placed(incident=one, start_ns=start_ns, bound_ns=bound_ns, is_known=is_known)
                for ((start_ns, bound_ns), one), is_known in zip(timed, known, strict=True)
            ),
            not_placed=tuple(
                NotPlaced(incident=one, reason=self._why(one, moments)) for one, moments in found if axis not in moments
            ),
        )

    def _related(self) -> list[set[str]]:
        """Nodes in groups whose clocks are related."""
        groups: list[set[str]] = []
        of: dict[Axis, set[str]] = {}
        for session in self.sessions:
            axes = [Axis(is_boot=False, name=its.reference) for its in session.comparisons]
            axes += [Axis(is_boot=True, name=session.boot_id)] if session.boot_id and session.timeline else []
            for axis in axes:
                of.setdefault(axis, set()).add(session.node)
        for nodes in (*of.values(), *({session.node} for session in self.sessions)):
            touched = [group for group in groups if group & nodes]
            groups = [group for group in groups if not group & nodes]
            groups.append(nodes.union(*touched))
        return groups

    def _session_of(self, incident: Incident) -> SessionClock | None:
        """The session of its node that recorded it."""
        at_ns = incident.start_ns
        mine = (
            session
            for session in self.sessions
            if session.node == incident.node
            and session.started_ns - _AROUND_NS <= at_ns <= session.last_seen_ns + _AROUND_NS
        )
        return max(mine, key=lambda one: (one.started_ns <= at_ns, one.started_ns), default=None)

    def _axis_times(self, incident: Incident) -> AxisTimes:
        own = self._session_of(incident)
        moment = own.timeline.moment(incident.start_ns) if own and own.timeline else None
        if own is None or own.timeline is None or moment is None:
            return {}
        mono_ns, bound_ns = moment
        found: dict[Axis, tuple[int, int]] = {}
        if own.boot_id:
            ends = (session.timeline for session in self.sessions if session.timeline and session.is_of_boot_of(own))
            last = max(ends, key=lambda timeline: timeline.end_ns)
            found[Axis(is_boot=True, name=own.boot_id)] = mono_ns + last.last_offset_ns, bound_ns
        for session in self.sessions:
            for clock in session.comparisons if session.timeline and session.is_of_boot_of(own) else ():
                compared = _compared(own.timeline, session.timeline, clock, mono_ns)
                axis = Axis(is_boot=False, name=clock.reference)
                if compared and (axis not in found or compared[1] + bound_ns < found[axis][1]):
                    found[axis] = compared[0], compared[1] + bound_ns
        return found

    def _why(self, incident: Incident, moments: AxisTimes) -> str:
        own = self._session_of(incident)
        if any(not axis.is_boot for axis in moments):
            return "its clock was compared at another time, with another clock"
        if own and any(session.comparisons for session in self.sessions if session.is_of_boot_of(own)):
            return "its clock was compared after another start of that host, or long after it was recorded"
        return "its clock was not compared with that of another node"


def merged_clocks(reader: Reader) -> MergedClocks:
    """Read the clocks of the nodes from a recording."""
    sessions, boots = reader.sessions(), reader.boots()
    timeline_of = dict(timelines(reader, {session.session for session in sessions}))
    compared: dict[int, list[NodeClock]] = {}
    for session, clock in reader.clock_comparisons():
        if clock.reference:  # without one it may be of anybody's clock
            compared.setdefault(session, []).append(clock)
    return MergedClocks(
        [
            SessionClock(
                node=session.node,
                boot_id=boots.get(session.session, ""),
                started_ns=session.started_ns,
                last_seen_ns=session.last_seen_ns,
                timeline=timeline_of.get(session.session),
                comparisons=tuple(compared.get(session.session, ())),
            )
            for session in sessions
        ]
    )


def _best(found: Iterable[tuple[Incident, AxisTimes]]) -> Axis | None:
    """The clock that orders incidents of most nodes, then most incidents; None: it covers fewer than two nodes."""
    nodes: dict[Axis, list[str]] = {}
    for one, moments in found:
        for axis in moments:
            nodes.setdefault(axis, []).append(one.node)
    able = [axis for axis, of in nodes.items() if len(set(of)) > 1]
    return max(able, key=lambda axis: (len(set(nodes[axis])), len(nodes[axis]), not axis.is_boot), default=None)


def _compared(own: Timeline, other: Timeline | None, clock: NodeClock, mono_ns: int) -> tuple[int, int] | None:
    """A time of `own` by the clock that the node's was compared with when `other` ended, and the bound.

    None: `other` did not end then, so that its clock may have been set meanwhile.
    """
    compared_ns = other.end_mono_ns(clock.at_ns + clock.offset_ns) if other else None
    if other is None or compared_ns is None:
        return None
    suspended = _suspended_between(own.suspended_ns(mono_ns), other.suspended_at(compared_ns), compared_ns >= mono_ns)
    if suspended is None:
        return None
    least_ns, most_ns = suspended
    elapsed_ns, open_ns = compared_ns - mono_ns + least_ns, most_ns - least_ns
    # what is not known of it lies on one side: the middle of both ends, and half of it as a bound
    return clock.at_ns - elapsed_ns - open_ns // 2, clock.bound_ns + drift_ns(elapsed_ns + open_ns) + -(-open_ns // 2)


def _suspended_between(
    by_event: tuple[int, int | None], by_comparison: int | None, is_before: bool
) -> tuple[int, int] | None:
    """Least and most time that a host was suspended between two times, from the totals until each of them.

    is_before: the event is the earlier one; else the result is below 0. None: not known.
    """
    least_ns, most_ns = by_event
    if by_comparison is None or (most_ns is None and not is_before):
        return None
    if is_before:  # it only grows
        most_ns = by_comparison if most_ns is None else min(most_ns, by_comparison)
        return max(0, by_comparison - most_ns), max(0, by_comparison - least_ns)
    assert most_ns is not None
    return min(0, by_comparison - most_ns), min(0, by_comparison - least_ns)


def _contradictions(sessions: Iterable[SessionClock], threshold_ns: int) -> Iterator[str]:
    """Contradictions about the wall clock between clock pairs of one boot."""
    known = [(session.node, session.timeline) for session in sessions if session.timeline]
    known.sort(key=lambda each: each[1].begin_ns)
    for place, (node, timeline) in enumerate(known):
        if place:
            yield from _disagreement(*known[place - 1], node, timeline, threshold_ns)
        for step in timeline.steps(threshold_ns):
            first, last = (format_moment(at_ns, of_ns=SECOND_NS) for at_ns in (step.after_ns, step.until_ns))
            was_set = _was_set(node, step.by_ns, step.bound_ns, may_be_suspended=step.may_be_suspended)
            yield f"{was_set}, between {first} and {last}"


def _disagreement(other: str, before: Timeline, node: str, after: Timeline, threshold_ns: int) -> Iterator[str]:
    """How far two sessions differ about the wall clock's offset from CLOCK_MONOTONIC at the later one's begin."""
    begin_ns = after.begin_ns
    by_ns = after.first_offset_ns - before.offset_ns(begin_ns)
    then, now = before.suspended_at(begin_ns), after.suspended_at(begin_ns)
    is_told = then is not None and now is not None
    by_ns -= now - then if then is not None and now is not None else 0
    bound_ns = before.reading_ns + after.reading_ns
    if abs(by_ns) - bound_ns <= threshold_ns:
        return
    if other == node:
        was_set = _was_set(node, by_ns, bound_ns, may_be_suspended=not is_told)
        yield f"{was_set}, between two of its recordings"
        return
    where = "ahead of" if by_ns > 0 else "behind"
    disagreement, known_to = format_ns(abs(by_ns)), format_ns(bound_ns)
    yield f"the clock of {node} is {disagreement} {where} that of {other} on the same host, to {known_to}"


def _was_set(node: str, by_ns: int, bound_ns: int, *, may_be_suspended: bool) -> str:
    how = "went ahead" if by_ns > 0 else "was set back"
    instead = " (or the host was suspended)" if by_ns > 0 and may_be_suspended else ""
    return f"the clock of {node} {how} by {format_ns(abs(by_ns))}{instead}, to {format_ns(bound_ns)}"
