"""One incident per cause, resource and root, however many affected processes, ranks and time ranges it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.impact import impact_of
from ingero.diagnose.findings import (
    JUDGED_NS,
    Affected,
    Bucket,
    CodeLine,
    Contributing,
    Culprit,
    Fact,
    FindingKind,
    Fix,
    Identity,
    Incident,
    Part,
    Where,
    severity_of,
)
from ingero.diagnose.incidents.bottleneck_merge import merge_bottlenecks
from ingero.diagnose.incidents.case_finding import CaseFinding
from ingero.diagnose.incidents.subsumption import explained_ratio
from ingero.diagnose.incidents.where import where_of, where_of_event

_MIN_CONTRIBUTING_RATIO = 0.10  # of the lost time: another cause of it is named from here on
_SAME_INCIDENT_NS = 10_000_000_000  # longest quiet time between two time ranges of one incident


def merge_findings(found: Iterable[CaseFinding]) -> tuple[Incident, ...]:
    """Groups findings into incidents, worst first; numbered by when they began."""
    groups: dict[Identity, list[CaseFinding]] = defaultdict(list)
    for one in _absorb_reasons(merge_bottlenecks(found)):
        finding = one.finding
        groups[finding.cause, finding.resource, finding.root, one.kind is FindingKind.BOTTLENECK].append(one)
    incidents = [_incident(part) for group in groups.values() for part in _by_time(group)]
    incidents.sort(key=lambda incident: (incident.start_ns, incident.cause))
    numbered = [replace(one, number=number) for number, one in enumerate(incidents, 1)]
    return tuple(sorted(numbered, key=lambda one: (-one.severity, -one.lost_ns, one.number)))


def _absorb_reasons(found: list[CaseFinding]) -> Iterator[CaseFinding]:
    """Merges findings of other processes into the one that names them as its reason: chain, line, fixes, evidence."""
    absorbed_ids: set[int] = set()
    for one in found:
        reasons = [other for other in found if other is not one and _is_reason(one, other)]
        absorbed_ids |= {id(other) for other in reasons}
        if reasons:
            yield _with_reasons(one, reasons)
    absorbing = {id(one) for one in found if any(_is_reason(one, other) for other in found if other is not one)}
    yield from (one for one in found if id(one) not in absorbed_ids and id(one) not in absorbing)


def _is_reason(found: CaseFinding, other: CaseFinding) -> bool:
    process = other.case.process.process if other.case else other.finding.process
    if not found.finding.absorbed_processes or other.finding.absorbed_processes:
        return False
    overlap = min(found.end_ns, other.end_ns) - max(found.begin_ns, other.begin_ns)
    return process in found.finding.absorbed_processes and overlap > 0


def _with_reasons(found: CaseFinding, reasons: list[CaseFinding]) -> CaseFinding:
    worst = max(reasons, key=lambda other: other.finding.lost_ns).finding
    finding = replace(
        found.finding,
        summary=f"{found.finding.summary}: {worst.summary}",
        culprits=(*found.finding.culprits, *worst.culprits),
        line=found.finding.line or worst.line,
        chain=(*found.finding.chain, *worst.chain),
        fixes=(*worst.fixes, *found.finding.fixes),
        evidence={**worst.evidence, **found.finding.evidence, "because": worst.cause},
    )
    return CaseFinding(finding, found.case)


def _by_time(group: Sequence[CaseFinding]) -> list[list[CaseFinding]]:
    """Splits findings of one identity into incidents, where a long quiet time lies between them."""
    parts: list[list[CaseFinding]] = []
    end_ns = 0
    for one in sorted(group, key=lambda one: one.begin_ns):
        if parts and one.begin_ns - end_ns <= _SAME_INCIDENT_NS:
            parts[-1].append(one)
        else:
            parts.append([one])
        end_ns = max(end_ns, one.end_ns)
    return parts


_STEP_PARTS = {Part.IDLE: "host", Part.LAUNCH: "host", Part.GPU: "blocked"}


def _place(found: CaseFinding, bucket: Bucket) -> str:
    """Where time was lost, as "part.state": a key of an incident's breakdown."""
    knows_idle = found.case is None or found.case.knows_idle
    part = bucket.part.value if knows_idle else _STEP_PARTS.get(bucket.part, bucket.part.value)
    return f"{part}.{bucket.state}"


def _incident(part: Sequence[CaseFinding]) -> Incident:
    lead = max(part, key=lambda one: one.finding.lost_ns)
    case, finding = lead.case, lead.finding
    lost_ns_of = _lost_ns_by_process(part)
    worst = max(lost_ns_of, key=lambda process: lost_ns_of[process])
    lost_ns = lost_ns_of[worst]
    wall_ns = _wall_ns_of(part, case) if case else finding.wall_ns
    ratio = lost_ns / max(wall_ns, 1) if case or wall_ns else 0.0
    breakdown: dict[str, int] = defaultdict(int)
    for one in (one for one in part if one.process == worst):
        for bucket, ns in one.finding.claims.items():
            breakdown[_place(one, bucket)] += ns
    line = next((one.finding.line for one in [lead, *part] if one.finding.line), None)
    return Incident(
        number=0,
        cause=finding.cause,
        resource=finding.resource,
        root=finding.root,
        kind=lead.kind,
        severity=max(one.finding.severity or severity_of(ratio) for one in part),
        start_ns=min(one.begin_ns for one in part),
        end_ns=max(one.end_ns for one in part),
        lost_ns=lost_ns,
        lost_ratio=ratio,
        explained_ratio=_explained(case),
        peak_ratio=max((one.case.peak_ratio for one in part if one.case), default=ratio),
        summary=finding.summary,
        affected=_all_affected(part, lost_ns_of),
        culprits=_culprits(part),
        line=line,
        where=_where(lead, line),
        contributing=_contributing(lead),
        chain=tuple(finding.chain),
        fixes=_without_leading_or(finding.fixes),
        breakdown=dict(breakdown),
        evidence=dict(finding.evidence) | _judged(case),
        impact=impact_of(case) if case else None,
        timeline=case.timeline if case else (),
    )


def _where(lead: CaseFinding, line: CodeLine | None) -> Where:
    return where_of(lead.case, line, lead.finding.claims) if lead.case else where_of_event(line)


def _contributing(lead: CaseFinding) -> tuple[Contributing, ...]:
    """The other causes of the case's lost time that explain at least a tenth of it, most first."""
    lost_ns = max(lead.case.lost_ns, 1) if lead.case else 1
    others = [finding for finding in lead.case.findings if finding.cause != lead.finding.cause] if lead.case else []
    found = [
        Contributing(
            cause=other.cause, lost_ns=other.lost_ns, share_ratio=other.lost_ns / lost_ns, headline=other.summary
        )
        for other in others
        if other.lost_ns >= _MIN_CONTRIBUTING_RATIO * lost_ns
    ]
    return tuple(sorted(found, key=lambda one: -one.lost_ns))


def _without_leading_or(fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    """The fixes, the first without its leading "or ": a rule writes it before all that may follow another."""
    return tuple(replace(fix, text=fix.text.removeprefix("or ")) for fix in fixes[:1]) + tuple(fixes[1:])


def _judged(case: Case | None) -> dict[str, Fact]:
    """How much wall time was judged, and how many sync intervals were read in full, where that is not all of it."""
    if case is None:
        return {}
    judged: dict[str, Fact] = {JUDGED_NS: case.wall_ns} if case.is_part_known else {}
    if not case.is_sampled:
        return judged
    return judged | {"sync intervals read whole": len(case.sync_intervals), "sync_intervals": case.sync_interval_count}


def _lost_ns_by_process(part: Sequence[CaseFinding]) -> dict[int, int]:
    """Lost time by process: added up per process, never over ranks, which lose the same second together."""
    lost_ns: dict[int, int] = defaultdict(int)
    for one in part:
        lost_ns[one.process] += one.finding.lost_ns
    return lost_ns


def _wall_ns_of(part: Sequence[CaseFinding], case: Case | None) -> int:
    mine = [one.case for one in part if one.case and case and one.case.process == case.process]
    return sum({id(one): one.wall_ns for one in mine}.values())


def _explained(case: Case | None) -> float:
    return explained_ratio(case) if case else 1.0


def _all_affected(part: Sequence[CaseFinding], lost_ns_of: Mapping[int, int]) -> tuple[Affected, ...]:
    """The affected processes, each with what it lost by this cause in all its time ranges."""
    found: dict[int, Affected] = {}
    for one in part:
        affected = one.case.affected if one.case else one.finding.affected
        if affected:
            found[one.process] = replace(affected, lost_ns=lost_ns_of[one.process])
    return tuple(sorted(found.values(), key=lambda affected: -affected.lost_ns))


def _culprits(part: Sequence[CaseFinding]) -> tuple[Culprit, ...]:
    found: dict[tuple[int, str], Culprit] = {}
    for one in part:
        for culprit in one.finding.culprits:
            known = found.get((culprit.pid, culprit.name))
            if known is None or known.lost_ns < culprit.lost_ns:
                found[culprit.pid, culprit.name] = culprit
    return tuple(sorted(found.values(), key=lambda culprit: -culprit.lost_ns))
