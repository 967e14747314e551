"""One incident per cause, resource and root, however many affected processes, ranks and time ranges it has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.impact import impact_of
from ingero.diagnose.findings import (
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
from ingero.diagnose.incidents.bottleneck_merge import with_bases
from ingero.diagnose.incidents.case_finding import Found
from ingero.diagnose.incidents.subsumption import explained_ratio
from ingero.diagnose.incidents.where import where_of, where_of_event

_CONTRIBUTES = 0.10  # of the lost time, from which on another cause of it is named
_SAME_INCIDENT_NS = 10_000_000_000  # quiet time between two time ranges of one fault


def merge(found: Iterable[Found]) -> tuple[Incident, ...]:
    """Incidents, worst first; numbered by their begin."""
    groups: dict[Identity, list[Found]] = defaultdict(list)
    for one in _absorbed(with_bases(found)):
        finding = one.finding
        groups[finding.cause, finding.resource, finding.root, one.kind is FindingKind.BOTTLENECK].append(one)
    incidents = [_incident(part) for group in groups.values() for part in _by_time(group)]
    incidents.sort(key=lambda one: (one.start_ns, one.cause))
    numbered = [replace(one, number=number) for number, one in enumerate(incidents, 1)]
    return tuple(sorted(numbered, key=lambda one: (-one.severity, -one.lost_ns, one.number)))


def _absorbed(found: list[Found]) -> Iterator[Found]:
    """A finding that names other processes' findings as its reason takes them in: chain, line, fixes and numbers."""
    gone: set[int] = set()
    for one in found:
        reasons = [other for other in found if other is not one and _is_reason(one, other)]
        gone |= {id(other) for other in reasons}
        if reasons:
            yield _with_reasons(one, reasons)
    absorbing = {id(one) for one in found if any(_is_reason(one, other) for other in found if other is not one)}
    yield from (one for one in found if id(one) not in gone and id(one) not in absorbing)


def _is_reason(one: Found, other: Found) -> bool:
    process = other.case.process.process if other.case else other.finding.process
    if not one.finding.absorbs or other.finding.absorbs:
        return False
    overlap = min(one.end_ns, other.end_ns) - max(one.begin_ns, other.begin_ns)
    return process in one.finding.absorbs and overlap > 0


def _with_reasons(one: Found, reasons: list[Found]) -> Found:
    worst = max(reasons, key=lambda other: other.finding.lost_ns).finding
    finding = replace(
        one.finding,
        summary=f"{one.finding.summary}: {worst.summary}",
        culprits=(*one.finding.culprits, *worst.culprits),
        line=one.finding.line or worst.line,
        chain=(*one.finding.chain, *worst.chain),
        fixes=(*worst.fixes, *one.finding.fixes),
        evidence={**worst.evidence, **one.finding.evidence, "because": worst.cause},
    )
    return Found(finding, one.case)


def _by_time(group: Sequence[Found]) -> list[list[Found]]:
    """Findings with a long quiet time between them are incidents of their own."""
    parts: list[list[Found]] = []
    end_ns = 0
    for one in sorted(group, key=lambda one: one.begin_ns):
        if parts and one.begin_ns - end_ns <= _SAME_INCIDENT_NS:
            parts[-1].append(one)
        else:
            parts.append([one])
        end_ns = max(end_ns, one.end_ns)
    return parts


_OF_STEPS = {Part.IDLE: "host", Part.LAUNCH: "host", Part.GPU: "blocked"}


def _place(found: Found, bucket: Bucket) -> str:
    """Where time was lost, by "part.state"."""
    knows_idle = found.case is None or found.case.knows_idle
    part = bucket.part.value if knows_idle else _OF_STEPS.get(bucket.part, bucket.part.value)
    return f"{part}.{bucket.state}"


def _incident(part: Sequence[Found]) -> Incident:
    lead = max(part, key=lambda one: one.finding.lost_ns)
    case, finding = lead.case, lead.finding
    drops = _losses(part)
    worst = max(drops, key=lambda process: drops[process])
    lost = drops[worst]
    ratio = lost / max(_wall_of(part, case), 1) if case else lost / max(finding.wall_ns, 1) if finding.wall_ns else 0.0
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
        lost_ns=lost,
        lost_ratio=ratio,
        explained_ratio=_explained(case),
        peak_ratio=max((one.case.peak_ratio for one in part if one.case), default=ratio),
        summary=finding.summary,
        affected=_all_affected(part, drops),
        culprits=_culprits(part),
        line=line,
        where=_where(lead, line),
        contributing=_contributing(lead),
        chain=tuple(finding.chain),
        fixes=_beginning_plainly(finding.fixes),
        breakdown=dict(breakdown),
        evidence=dict(finding.evidence) | _sampled(case),
        impact=impact_of(case) if case else None,
        timeline=case.timeline if case else (),
    )


def _where(lead: Found, line: CodeLine | None) -> Where:
    return where_of(lead.case, line, lead.finding.claims) if lead.case else where_of_event(line)


def _contributing(lead: Found) -> tuple[Contributing, ...]:
    """The other causes of the same lost time, from a tenth of it, most first."""
    lost_ns = max(lead.case.lost_ns, 1) if lead.case else 1
    others = [one for one in lead.case.findings if one.cause != lead.finding.cause] if lead.case else []
    found = [
        Contributing(cause=one.cause, lost_ns=one.lost_ns, share_ratio=one.lost_ns / lost_ns, headline=one.summary)
        for one in others
        if one.lost_ns >= _CONTRIBUTES * lost_ns
    ]
    return tuple(sorted(found, key=lambda one: -one.lost_ns))


def _beginning_plainly(fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    """Each further way out says "or"; which one comes first a rule knows only when it has left some out."""
    return tuple(replace(one, text=one.text.removeprefix("or ")) for one in fixes[:1]) + tuple(fixes[1:])


def _sampled(case: Case | None) -> dict[str, Fact]:
    """How much was read whole, where that is not all."""
    if case is None or not case.is_sampled:
        return {}
    return {"sync intervals read whole": len(case.sync_intervals), "sync_intervals": case.sync_interval_count}


def _losses(part: Sequence[Found]) -> dict[int, int]:
    """By process. Ranks lose the same second together: their lost times are not added, those of one process are."""
    lost: dict[int, int] = defaultdict(int)
    for one in part:
        lost[one.process] += one.finding.lost_ns
    return lost


def _wall_of(part: Sequence[Found], case: Case | None) -> int:
    mine = [one.case for one in part if one.case and case and one.case.process == case.process]
    return sum({id(one): one.wall_ns for one in mine}.values())


def _explained(case: Case | None) -> float:
    return explained_ratio(case) if case else 1.0


def _all_affected(part: Sequence[Found], drops: Mapping[int, int]) -> tuple[Affected, ...]:
    """Each with what it lost by this cause, in all its time ranges."""
    found: dict[int, Affected] = {}
    for one in part:
        affected = one.case.affected if one.case else one.finding.affected
        if affected:
            found[one.process] = replace(affected, lost_ns=drops[one.process])
    return tuple(sorted(found.values(), key=lambda affected: -affected.lost_ns))


def _culprits(part: Sequence[Found]) -> tuple[Culprit, ...]:
    found: dict[tuple[int, str], Culprit] = {}
    for one in part:
        for culprit in one.finding.culprits:
            known = found.get((culprit.pid, culprit.name))
            if known is None or known.lost_ns < culprit.lost_ns:
                found[culprit.pid, culprit.name] = culprit
    return tuple(sorted(found.values(), key=lambda culprit: -culprit.lost_ns))
