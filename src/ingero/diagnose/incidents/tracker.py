"""Tracks incidents while they happen: what a diagnosis every second finds is opened once, updated, and closed.

Identity is (cause, resource, root); a bottleneck, which is counted against zero, has an identity of its own. Pure: the
caller passes the time that the evidence reaches to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ingero.diagnose.findings import UNEXPLAINED, Diagnosis, FindingKind, Identity, Incident, Severity
from ingero.diagnose.incidents.bottleneck_merge import covers
from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.units import SECOND_NS

QUIET_NS = (
    6 * SECOND_NS
)  # an incident is over this long after its last lost time; time ranges bridge four quiet seconds
REOPEN_WITHIN_NS = 10 * SECOND_NS  # an incident that comes back within this is the same one
_KEEP_CLOSED_NS = 60 * SECOND_NS  # closed incidents are kept this long before the window, which may reach back again
UPDATE_NS = 5 * SECOND_NS  # shortest time between two updates of an incident
_MIN_UPDATE_GROWTH = 1.2  # an update is reported when the lost time has grown by this factor

# How long a finding must last before it is reported. The kernel's sums may come a second after the sync intervals, so
# that the owner of a lost time is sometimes not known at once; and a program that has just started always waits for
# something.
_UNEXPLAINED_HOLD_NS = 3 * SECOND_NS
_BOTTLENECK_HOLD_NS = 30 * SECOND_NS

# No program is meant to be kept off its CPUs for so much of its time: these bottlenecks are reported at once.
_URGENT_BOTTLENECKS = frozenset({"cpu-contention", "noisy-neighbor", "priority", "cpu-throttled"})
_URGENT_RATIO = 0.2

# Causes that remain when no better one is seen: one more second of samples and sums often shows a better one.
_NEEDS_SECOND_PASS = frozenset(
    {"cpu-contention", "noisy-neighbor", "self-oversubscription", "cold-start", "gpu-slower", "lock-contention"}
)
_CONFIRM_DELAY_NS = 4 * SECOND_NS // 10  # passes are a second apart, or half a second where the second one is urgent
# A lost time this long when first seen needs no second pass: more than a second of sums and samples is there.
_CONFIRMED_BY_LENGTH_NS = 5 * SECOND_NS // 4


IsOngoing: TypeAlias = Callable[[Incident, int], bool]


def _never(_incident: Incident, _lost_until_ns: int) -> bool:
    return False


@dataclass(slots=True)
class _Tracked:
    incident: Incident
    last_end_ns: int  # end of its lost time in the last diagnosis that saw it
    window_start_ns: int
    carried_ns: int = 0  # lost time before that start, which has left the window of the diagnosis
    reported_ns: int = 0
    reported_lost_ns: int = 0


class IncidentTracker:
    """The incidents of one recording. first_number: the number that the first one gets."""

    def __init__(self, first_number: int = 1) -> None:
        self._next_number = first_number
        self._open: dict[Identity, _Tracked] = {}
        self._closed: dict[Identity, _Tracked] = {}
        self._waiting: dict[Identity, int] = {}  # since when a finding lasts that is not reported yet

    @property
    def earliest_start_ns(self) -> int | None:
        """When the oldest open incident began; bottlenecks do not count: they are a share of any minute."""
        return min((tracked.incident.start_ns for key, tracked in self._open.items() if not key[3]), default=None)

    @property
    def is_undecided(self) -> bool:
        """Whether a second pass would report an incident that the last one saw for the first time."""
        known = self._open.keys() | self._closed.keys()
        return any(key[0] in _NEEDS_SECOND_PASS and not key[3] for key in self._waiting.keys() - known)

    @property
    def has_unreported_urgent_bottleneck(self) -> bool:
        """Whether an urgent bottleneck was seen that is not reported yet: it is, as soon as it is large enough."""
        known = self._open.keys() | self._closed.keys()
        return any(key[3] and key[0] in _URGENT_BOTTLENECKS for key in self._waiting.keys() - known)

    @property
    def is_settled(self) -> bool:
        """Whether all incidents of the last pass have been reported, except bottlenecks, which are held longer."""
        known = self._open.keys() | self._closed.keys()
        return all(key[3] for key in self._waiting.keys() - known)

    def update(self, diagnosis: Diagnosis, now_ns: int, is_ongoing: IsOngoing = _never) -> list[Change]:
        """Updates the incidents with a diagnosis of the time until now_ns; what has changed by it.

        is_ongoing: called for an open incident that the diagnosis does not see, with the end of its last lost time.
        """
        in_order = sorted(diagnosis.incidents, key=lambda incident: incident.start_ns)
        latest = {incident.identity: incident for incident in in_order}
        changes = [
            change
            for key, incident in latest.items()
            for change in self._see(key, incident, diagnosis.incidents, now_ns)
        ]
        self._waiting = {key: since for key, since in self._waiting.items() if key in latest}
        kept_from_ns = diagnosis.window.begin_ns - _KEEP_CLOSED_NS
        self._closed = {key: tracked for key, tracked in self._closed.items() if tracked.last_end_ns >= kept_from_ns}
        for key, tracked in self._open.items():
            if key[3] and any(covers(incident, tracked.incident) for incident in diagnosis.incidents):
                tracked.last_end_ns = now_ns  # it is ongoing, reported as part of an incident
            elif now_ns - tracked.last_end_ns > SECOND_NS and is_ongoing(tracked.incident, tracked.last_end_ns):
                tracked.last_end_ns = now_ns
        over = [key for key, tracked in self._open.items() if now_ns - tracked.last_end_ns > QUIET_NS]
        return changes + [self._close(key) for key in over]

    def finish(self) -> list[Change]:
        """Closes all open incidents, at the end of tracing."""
        return [self._close(key) for key in list(self._open)]

    def _see(self, key: Identity, incident: Incident, everything: Sequence[Incident], now_ns: int) -> list[Change]:
        end_ns = incident.end_ns if incident.end_ns is not None else now_ns
        if key in self._open:
            return self._continue(self._open[key], incident, end_ns, now_ns)
        before = self._closed.get(key)
        if now_ns - end_ns > QUIET_NS or (before and end_ns <= before.last_end_ns + SECOND_NS):
            return []  # it is over, and its lost time that was reported is still in the window
        waited_ns = now_ns - self._waiting.setdefault(key, now_ns)
        if waited_ns < _hold_ns(incident, now_ns) or _has_better_name(incident, everything):
            return []
        if before and incident.start_ns - before.last_end_ns <= REOPEN_WITHIN_NS:
            self._open[key] = self._closed.pop(key)
            before.reported_ns = 0
            return self._continue(before, incident, end_ns, now_ns)
        opened = replace(incident, number=self._next_number, end_ns=None)
        self._next_number += 1
        self._open[key] = _Tracked(
            opened, end_ns, incident.start_ns, reported_ns=now_ns, reported_lost_ns=incident.lost_ns
        )
        return [Change(ChangeKind.OPENED, opened)]

    def _continue(self, tracked: _Tracked, incident: Incident, end_ns: int, now_ns: int) -> list[Change]:
        moved_ns = incident.start_ns - tracked.window_start_ns
        if moved_ns > SECOND_NS:
            tracked.carried_ns += int(tracked.incident.lost_ratio * moved_ns)
            tracked.window_start_ns = incident.start_ns
        known = tracked.incident
        tracked.last_end_ns = max(tracked.last_end_ns, end_ns)
        tracked.incident = replace(
            incident,
            number=known.number,
            start_ns=min(known.start_ns, incident.start_ns),
            end_ns=None,
            lost_ns=max(known.lost_ns, tracked.carried_ns + incident.lost_ns),
            peak_ratio=max(known.peak_ratio, incident.peak_ratio),
            severity=_severity(known, incident),
        )
        is_worth = tracked.incident.lost_ns >= _MIN_UPDATE_GROWTH * tracked.reported_lost_ns
        if now_ns - tracked.reported_ns < UPDATE_NS or not is_worth:
            return []
        tracked.reported_ns, tracked.reported_lost_ns = now_ns, tracked.incident.lost_ns
        return [Change(ChangeKind.UPDATED, tracked.incident)]

    def _close(self, key: Identity) -> Change:
        tracked = self._closed[key] = self._open.pop(key)
        tracked.incident = replace(tracked.incident, end_ns=tracked.last_end_ns)
        return Change(ChangeKind.CLOSED, tracked.incident)


def _severity(known: Incident, incident: Incident) -> Severity:
    """The worst severity so far; but an incident that was critical, a standstill, and continues is not any more."""
    return incident.severity if known.severity is Severity.CRITICAL else max(known.severity, incident.severity)


def _hold_ns(incident: Incident, now_ns: int) -> int:
    if incident.kind is FindingKind.BOTTLENECK:
        is_urgent = incident.cause in _URGENT_BOTTLENECKS and incident.lost_ratio >= _URGENT_RATIO
        return _CONFIRM_DELAY_NS if is_urgent else _BOTTLENECK_HOLD_NS
    if incident.cause == UNEXPLAINED:
        return _UNEXPLAINED_HOLD_NS
    is_late = incident.cause in _NEEDS_SECOND_PASS and now_ns - incident.start_ns < _CONFIRMED_BY_LENGTH_NS
    return _CONFIRM_DELAY_NS if is_late and incident.kind is FindingKind.INCIDENT else 0


def _has_better_name(incident: Incident, everything: Sequence[Incident]) -> bool:
    """Whether an unexplained lost time has a known cause in another incident of the same processes and kind."""
    if incident.cause != UNEXPLAINED:
        return False
    processes = {affected.process for affected in incident.affected}
    named = (other for other in everything if other.cause != UNEXPLAINED and other.kind is incident.kind)
    return any(processes & {affected.process for affected in other.affected} for other in named)
