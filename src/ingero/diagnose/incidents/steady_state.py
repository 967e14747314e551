"""Steady state of the lost times that were reported: while nothing changes, they need no new explanation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import UNEXPLAINED, Bucket, FindingKind, Identity, Incident
from ingero.diagnose.incidents.tracker import UPDATE_NS
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_RATIO

_CaseKey: TypeAlias = "tuple[int, int]"

_EXPLAIN_AGAIN_NS = UPDATE_NS  # a lost time in steady state; sooner than an incident that is over is closed
_MAX_GROWTH_RATIO = 0.25  # of a bucket's expected loss: growth up to this needs no new explanation


@dataclass(frozen=True, slots=True)
class _LostSoFar:
    """How much time a case had lost when it was explained. end_ns: end of its window."""

    end_ns: int
    wall_ns: int
    buckets: Mapping[Bucket, int]


class LastExplanation:
    """The incidents of the last full diagnosis and the cases they explain. at_ns: end of its window, Unix time."""

    def __init__(self, cases: Iterable[Case], incidents: Sequence[Incident], at_ns: int) -> None:
        self.at_ns = at_ns
        cases = tuple(cases)
        self._youngest_ns = min((at_ns - case.window.begin_ns for case in cases), default=0)
        self._incidents = tuple(incidents)
        self._lost_so_far = {
            _key(case): _LostSoFar(case.window.end_ns, case.wall_ns, dict(case.buckets)) for case in cases
        }
        self._has_cause_for_all = all(any(_is_cause_of(incident, case) for incident in incidents) for case in cases)

    def is_due(self, until_ns: int) -> bool:
        """Whether all cases are to be explained again: soon where little had been seen of a lost time."""
        return until_ns - self.at_ns >= min(_EXPLAIN_AGAIN_NS, self._youngest_ns)

    def holds(self, cases: Iterable[Case]) -> bool:
        """Whether these are the same cases, all with a cause, and lose time in no bucket faster than before.

        A bucket that grows by as much as is worth a finding needs a new explanation.
        """
        now = {_key(case): case for case in cases}
        return (
            self._has_cause_for_all
            and now.keys() == self._lost_so_far.keys()
            and all(_is_steady(self._lost_so_far[key], case) for key, case in now.items())
        )

    def covers(self, watched: Iterable[Incident]) -> bool:
        """Whether all incidents that rules found without a case (watched) were in the last diagnosis, too."""
        return {one.identity for one in watched} <= {incident.identity for incident in self._incidents}

    def until(self, until_ns: int, cases: Iterable[Case], watched: Iterable[Incident]) -> tuple[Incident, ...]:
        """The incidents of the last diagnosis, extended until now; time lost since is counted by the next one."""
        ends = {self._lost_so_far[_key(case)].end_ns: case.window.end_ns for case in cases}
        anew = {one.identity: one for one in watched}
        return tuple(self._extended(incident, until_ns, ends, anew) for incident in self._incidents)

    def _extended(
        self, incident: Incident, until_ns: int, ends: Mapping[int, int], anew: Mapping[Identity, Incident]
    ) -> Incident:
        if incident.end_ns is not None and incident.end_ns in ends:
            return replace(incident, end_ns=ends[incident.end_ns])
        if incident.end_ns is not None and incident.kind is FindingKind.BOTTLENECK:
            return replace(incident, end_ns=incident.end_ns + until_ns - self.at_ns)
        return anew.get(incident.identity, incident)


def _key(case: Case) -> _CaseKey:
    return (case.process.process, case.window.begin_ns)


def _is_cause_of(incident: Incident, case: Case) -> bool:
    """Whether an incident explains a case's lost time, or a part of it."""
    window = case.window
    end_ns = window.end_ns if incident.end_ns is None else incident.end_ns
    is_then = incident.start_ns < window.end_ns and end_ns > window.begin_ns
    is_affected = any(affected.process == case.process.process for affected in incident.affected)
    return incident.kind is FindingKind.INCIDENT and incident.cause != UNEXPLAINED and is_then and is_affected


def _is_steady(before: _LostSoFar, now: Case) -> bool:
    """Whether no bucket of a case grew by more than expected; one that grew by less has no new cause."""
    passed_ns = now.wall_ns - before.wall_ns
    for bucket, ns in now.buckets.items():
        lost_ns = max(before.buckets.get(bucket, 0), 0)
        expected_ns = lost_ns / max(before.wall_ns, 1) * passed_ns
        if ns - lost_ns - expected_ns > max(MIN_LOST_RATIO * passed_ns, _MAX_GROWTH_RATIO * expected_ns):
            return False
    return passed_ns >= 0
