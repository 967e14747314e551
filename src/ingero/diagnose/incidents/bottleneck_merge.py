"""A bottleneck that an incident makes worse is said in the incident: one trouble is told once.

A loop that always waits a while for its worker and then waits longer has lost time twice over, against zero and against
its best regime, but there is one thing to repair. The two lost times are never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ingero.diagnose.findings import UNEXPLAINED, Fact, Finding, FindingKind, Incident, Link, Severity, severity_of
from ingero.diagnose.incidents.case_finding import Found
from ingero.units import format_percent

AT_BEST = "lost in the baseline to"  # the causes, in an incident's evidence


def with_bases(found: Iterable[Found]) -> list[Found]:
    """The same, each bottleneck in the largest incident of its process that is the same trouble, where there is one.

    Ranks that lose together are told in the words of the one that loses most: if those say it, nothing is left to tell.
    """
    found = list(found)
    worse = sorted((one for one in found if one.kind is FindingKind.INCIDENT), key=lambda one: -one.finding.lost_ns)
    leads = {_identity(one.finding): one for one in reversed(worse)}
    told: dict[int, Found] = {}
    gone: set[int] = set()
    others: list[tuple[Found, Found]] = []  # bottlenecks of ranks that do not speak, and who speaks for them
    for base in (one for one in found if one.kind is FindingKind.BOTTLENECK and one.case):
        owners = [(one, leads[_identity(one.finding)]) for one in worse if _is_same_trouble(one, base)]
        own = next((one for one, lead in owners if one is lead), None)
        if own is not None:
            gone.add(id(base))
            severity = max(_severity(told.get(id(own), own)), _severity(base))
            finding = replace(_with_base(told.get(id(own), own).finding, base), severity=severity)
            told[id(own)] = Found(finding, own.case)
        else:
            others += [(base, lead) for _, lead in owners[:1]]
    gone |= {
        id(base)
        for base, lead in others
        if id(lead) in told and _says(told[id(lead)].finding.evidence, base.finding.cause)
    }
    return [told.get(id(one), one) for one in found if id(one) not in gone]


def _says(evidence: Mapping[str, Fact], cause: str) -> bool:
    return cause in str(evidence.get(AT_BEST, "")).split(", ")


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.cause, finding.resource, finding.root


def speaks_for(incident: Incident, bottleneck: Incident) -> bool:
    """Whether a bottleneck is said in this incident."""
    mine = {affected.process for affected in incident.affected}
    return _says(incident.evidence, bottleneck.cause) and any(one.process in mine for one in bottleneck.affected)


def _is_same_trouble(one: Found, base: Found) -> bool:
    """Whether both are about one cause on one resource, or about waiting for one worker, whatever that did.

    Two lost times without an owner have nothing in common that is proven.
    """
    if one.process != base.process:
        return False
    mine, theirs = one.finding, base.finding
    is_same = _identity(mine) == _identity(theirs) and mine.cause != UNEXPLAINED
    return is_same or not set(mine.waits_for).isdisjoint(theirs.waits_for)


def _severity(one: Found) -> Severity:
    return one.finding.severity or severity_of(one.finding.lost_ns / max(one.case.wall_ns if one.case else 0, 1))


def _with_base(finding: Finding, base: Found) -> Finding:
    other, wall_ns = base.finding, base.case.wall_ns if base.case else 0
    ratio = other.lost_ns / max(wall_ns, 1)
    how = "this way" if other.cause == finding.cause else f"to {other.cause}"
    said = [str(finding.evidence[AT_BEST])] if AT_BEST in finding.evidence else []
    facts: dict[str, Fact] = {
        AT_BEST: ", ".join([*said, other.cause]),
        f"lost in the baseline to {other.cause} (ratio)": ratio,
    }
    fixes = [one for one in other.fixes if one not in finding.fixes]
    return replace(
        finding,
        summary=f"{finding.summary}; {format_percent(ratio)} of wall time is lost {how} even in the baseline",
        chain=(*finding.chain, Link(text=f"in the baseline: {other.summary}", seen_ns=other.lost_ns)),
        fixes=(*finding.fixes, *fixes),
        evidence={**finding.evidence, **facts},
    )
