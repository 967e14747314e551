"""Whether the lost times that were told go on as they were: explaining them again would only say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ingero.diagnose.cases.case import Case
from ingero.diagnose.findings import UNEXPLAINED, Bucket, FindingKind, Identity, Incident
from ingero.diagnose.incidents.tracker import UPDATE_NS
from ingero.diagnose.lost_time.time_ranges import MIN_RATIO

_CaseKey: TypeAlias = "tuple[int, int]"

_EXPLAIN_AGAIN_NS = UPDATE_NS  # what goes on as it was told; sooner than one that is over is closed
_CHANGE = 0.25  # of what a bucket loses a second, by which that may grow


@dataclass(frozen=True, slots=True)
class _Weight:
    """How much a case had lost. end_ns: of its window."""

    end_ns: int
    wall_ns: int
    buckets: Mapping[Bucket, int]


class Explained:
    """What a look found, and the cases that it was about. at_ns: until when it looked."""

    def __init__(self, cases: Iterable[Case], incidents: Sequence[Incident], at_ns: int) -> None:
        self.at_ns = at_ns
        cases = tuple(cases)
        self._youngest_ns = min((at_ns - one.window.begin_ns for one in cases), default=0)
        self._incidents = tuple(incidents)
        self._weights = {_key(one): _Weight(one.window.end_ns, one.wall_ns, dict(one.buckets)) for one in cases}
        self._has_cause_for_all = all(any(_is_cause_of(one, case) for one in incidents) for case in cases)

    def is_due(self, until_ns: int) -> bool:
        """Whether it is time to explain all of it again: soon where little had been seen of a lost time."""
        return until_ns - self.at_ns >= min(_EXPLAIN_AGAIN_NS, self._youngest_ns)

    def holds(self, cases: Iterable[Case]) -> bool:
        """Whether these are the same cases, all with a cause, and lose no more in any bucket than they lost before.

        What grows by as much as is worth a finding is to be explained anew.
        """
        now = {_key(one): one for one in cases}
        return (
            self._has_cause_for_all
            and now.keys() == self._weights.keys()
            and all(_goes_on(self._weights[key], one) for key, one in now.items())
        )

    def covers(self, watched: Iterable[Incident]) -> bool:
        """Whether all that rules have seen without a case since was there before."""
        return {one.identity for one in watched} <= {one.identity for one in self._incidents}

    def until(self, until_ns: int, cases: Iterable[Case], watched: Iterable[Incident]) -> tuple[Incident, ...]:
        """What was found, as it is by now. What has been lost since is counted when it is explained again."""
        ends = {self._weights[_key(one)].end_ns: one.window.end_ns for one in cases}
        anew = {one.identity: one for one in watched}
        return tuple(self._gone_on(one, until_ns, ends, anew) for one in self._incidents)

    def _gone_on(
        self, one: Incident, until_ns: int, ends: Mapping[int, int], anew: Mapping[Identity, Incident]
    ) -> Incident:
        if one.end_ns is not None and one.end_ns in ends:
            return replace(one, end_ns=ends[one.end_ns])
        if one.end_ns is not None and one.kind is FindingKind.BOTTLENECK:
            return replace(one, end_ns=one.end_ns + until_ns - self.at_ns)
        return anew.get(one.identity, one)


def _key(case: Case) -> _CaseKey:
    return (case.process.process, case.window.begin_ns)


def _is_cause_of(incident: Incident, case: Case) -> bool:
    """Whether it says where a case's time, or a part of it, went to."""
    window = case.window
    end_ns = window.end_ns if incident.end_ns is None else incident.end_ns
    is_then = incident.start_ns < window.end_ns and end_ns > window.begin_ns
    is_affected = any(affected.process == case.process.process for affected in incident.affected)
    return incident.kind is FindingKind.INCIDENT and incident.cause != UNEXPLAINED and is_then and is_affected


def _goes_on(before: _Weight, now: Case) -> bool:
    """Whether no bucket grew by more than was to be expected; one that grew by less has no other cause."""
    passed_ns = now.wall_ns - before.wall_ns
    for bucket, ns in now.buckets.items():
        lost_ns = max(before.buckets.get(bucket, 0), 0)
        expected_ns = lost_ns / max(before.wall_ns, 1) * passed_ns
        if ns - lost_ns - expected_ns > max(MIN_RATIO * passed_ns, _CHANGE * expected_ns):
            return False
    return passed_ns >= 0
