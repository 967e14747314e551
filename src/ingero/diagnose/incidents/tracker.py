"""Incidents while they happen: what a diagnosis every second finds is opened once, updated, and closed.

Identity is (cause, resource, root); a bottleneck is counted against zero, and is one of its own. Pure: the caller says
up to when the evidence reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ingero.diagnose.findings import UNEXPLAINED, Diagnosis, FindingKind, Identity, Incident, Severity
from ingero.diagnose.incidents.bottleneck_merge import speaks_for
from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.units import SECOND_NS

QUIET_NS = (
    6 * SECOND_NS
)  # an incident is over this long after its last lost time; time ranges bridge four quiet seconds
SAME_NS = 10 * SECOND_NS  # it is the same one when it comes back within
_KEPT_NS = 60 * SECOND_NS  # a closed one beyond the window that is looked at, which may reach back again
UPDATE_NS = 5 * SECOND_NS
_GROWN = 1.2  # an update is worth telling when the lost time has grown by this

# How long a finding must last before it is told. The kernel's sums may come a second after the sync intervals, so that
# the owner of a lost time is sometimes not known at once; and a program that has just started always waits for
# something.
_UNEXPLAINED_HOLD_NS = 3 * SECOND_NS
_BOTTLENECK_HOLD_NS = 30 * SECOND_NS

# Nobody means a program to be kept from running for so much of its time: that needs no minute to be told.
_BY_OTHERS = frozenset({"cpu-contention", "noisy-neighbor", "priority", "cpu-throttled"})
_MUCH = 0.2

# What is left when nothing better is seen: a second more of samples and sums often has a better name for it.
_AT_SECOND_SIGHT = frozenset(
    {"cpu-contention", "noisy-neighbor", "self-oversubscription", "cold-start", "gpu-slower", "lock-contention"}
)
_SECOND_SIGHT_NS = 4 * SECOND_NS // 10  # looks are a second apart, and half of one where the second is hurried
_SEEN_ENOUGH_NS = 5 * SECOND_NS // 4  # of a lost time at first sight: more than a second of sums and samples is at hand


GoesOn: TypeAlias = Callable[[Incident, int], bool]


def _never(_incident: Incident, _lost_until_ns: int) -> bool:
    return False


@dataclass(slots=True)
class _Tracked:
    incident: Incident
    last_end_ns: int  # of what the last diagnosis saw of it
    window_start_ns: int
    carried_ns: int = 0  # lost before that start, which has left the window that is looked at
    told_ns: int = 0
    told_lost_ns: int = 0


class IncidentTracker:
    """The incidents of one recording. first_number: of the first one."""

    def __init__(self, first_number: int = 1) -> None:
        self._next_number = first_number
        self._open: dict[Identity, _Tracked] = {}
        self._closed: dict[Identity, _Tracked] = {}
        self._waiting: dict[Identity, int] = {}  # since when a finding lasts that is not told yet

    @property
    def earliest_start_ns(self) -> int | None:
        """When the oldest open incident began; a bottleneck is a share of any minute, and needs no longer one."""
        return min((one.incident.start_ns for key, one in self._open.items() if not key[3]), default=None)

    @property
    def is_undecided(self) -> bool:
        """Whether a second look would tell of something that the last one saw for the first time."""
        known = self._open.keys() | self._closed.keys()
        return any(key[0] in _AT_SECOND_SIGHT and not key[3] for key in self._waiting.keys() - known)

    @property
    def awaits_what_others_take(self) -> bool:
        """Whether a bottleneck by others was seen that is not told yet: it is, as soon as it is large enough."""
        known = self._open.keys() | self._closed.keys()
        return any(key[3] and key[0] in _BY_OTHERS for key in self._waiting.keys() - known)

    @property
    def is_settled(self) -> bool:
        """Whether all that the last look found has been told, but for bottlenecks, which take their time."""
        known = self._open.keys() | self._closed.keys()
        return all(key[3] for key in self._waiting.keys() - known)

    def update(self, diagnosis: Diagnosis, now_ns: int, goes_on: GoesOn = _never) -> list[Change]:
        """What has changed by this diagnosis of the time until now_ns.

        goes_on: asked of an open incident that it does not see, with the end of its last lost time.
        """
        latest = {one.identity: one for one in sorted(diagnosis.incidents, key=lambda one: one.start_ns)}
        changes = [change for key, one in latest.items() for change in self._see(key, one, diagnosis.incidents, now_ns)]
        self._waiting = {key: since for key, since in self._waiting.items() if key in latest}
        kept_from_ns = diagnosis.window.begin_ns - _KEPT_NS
        self._closed = {key: one for key, one in self._closed.items() if one.last_end_ns >= kept_from_ns}
        for key, tracked in self._open.items():
            if key[3] and any(speaks_for(one, tracked.incident) for one in diagnosis.incidents):
                tracked.last_end_ns = now_ns  # it goes on, and an incident says so
            elif now_ns - tracked.last_end_ns > SECOND_NS and goes_on(tracked.incident, tracked.last_end_ns):
                tracked.last_end_ns = now_ns
        over = [key for key, one in self._open.items() if now_ns - one.last_end_ns > QUIET_NS]
        return changes + [self._close(key) for key in over]

    def finish(self) -> list[Change]:
        """Closes what is open: nobody watches any more."""
        return [self._close(key) for key in list(self._open)]

    def _see(self, key: Identity, one: Incident, everything: Sequence[Incident], now_ns: int) -> list[Change]:
        end_ns = one.end_ns if one.end_ns is not None else now_ns
        if key in self._open:
            return self._go_on(self._open[key], one, end_ns, now_ns)
        before = self._closed.get(key)
        if now_ns - end_ns > QUIET_NS or (before and end_ns <= before.last_end_ns + SECOND_NS):
            return []  # it is over, and what was told of it is still in the window
        if now_ns - self._waiting.setdefault(key, now_ns) < _hold_ns(one, now_ns) or _has_better_name(one, everything):
            return []
        if before and one.start_ns - before.last_end_ns <= SAME_NS:
            self._open[key] = self._closed.pop(key)
            before.told_ns = 0
            return self._go_on(before, one, end_ns, now_ns)
        incident = replace(one, number=self._next_number, end_ns=None)
        self._next_number += 1
        self._open[key] = _Tracked(incident, end_ns, one.start_ns, told_ns=now_ns, told_lost_ns=one.lost_ns)
        return [Change(ChangeKind.OPENED, incident)]

    def _go_on(self, tracked: _Tracked, one: Incident, end_ns: int, now_ns: int) -> list[Change]:
        moved_ns = one.start_ns - tracked.window_start_ns
        if moved_ns > SECOND_NS:
            tracked.carried_ns += int(tracked.incident.lost_ratio * moved_ns)
            tracked.window_start_ns = one.start_ns
        known = tracked.incident
        tracked.last_end_ns = max(tracked.last_end_ns, end_ns)
        tracked.incident = replace(
            one,
            number=known.number,
            start_ns=min(known.start_ns, one.start_ns),
            end_ns=None,
            lost_ns=max(known.lost_ns, tracked.carried_ns + one.lost_ns),
            peak_ratio=max(known.peak_ratio, one.peak_ratio),
            severity=_severity(known, one),
        )
        is_worth = tracked.incident.lost_ns >= _GROWN * tracked.told_lost_ns
        if now_ns - tracked.told_ns < UPDATE_NS or not is_worth:
            return []
        tracked.told_ns, tracked.told_lost_ns = now_ns, tracked.incident.lost_ns
        return [Change(ChangeKind.UPDATED, tracked.incident)]

    def _close(self, key: Identity) -> Change:
        tracked = self._closed[key] = self._open.pop(key)
        tracked.incident = replace(tracked.incident, end_ns=tracked.last_end_ns)
        return Change(ChangeKind.CLOSED, tracked.incident)


def _severity(known: Incident, one: Incident) -> Severity:
    """The worst that was seen of it; but what stood still and goes on again is not critical any more."""
    return one.severity if known.severity is Severity.CRITICAL else max(known.severity, one.severity)


def _hold_ns(one: Incident, now_ns: int) -> int:
    if one.kind is FindingKind.BOTTLENECK:
        return _SECOND_SIGHT_NS if one.cause in _BY_OTHERS and one.lost_ratio >= _MUCH else _BOTTLENECK_HOLD_NS
    if one.cause == UNEXPLAINED:
        return _UNEXPLAINED_HOLD_NS
    is_late = one.cause in _AT_SECOND_SIGHT and now_ns - one.start_ns < _SEEN_ENOUGH_NS
    return _SECOND_SIGHT_NS if is_late and one.kind is FindingKind.INCIDENT else 0


def _has_better_name(one: Incident, everything: Sequence[Incident]) -> bool:
    """Whether what is unexplained has an owner at the same time."""
    if one.cause != UNEXPLAINED:
        return False
    mine = {affected.process for affected in one.affected}
    named = (other for other in everything if other.cause != UNEXPLAINED and other.kind is one.kind)
    return any(mine & {affected.process for affected in other.affected} for other in named)
