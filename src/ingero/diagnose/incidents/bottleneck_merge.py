"""Merges a bottleneck into the incident that makes it worse, so that one fault is reported once.

A loop that always waits for its worker and then waits longer loses time twice, against zero and against its baseline,
but there is one thing to fix. The two lost times are never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ingero.diagnose.findings import UNEXPLAINED, Fact, Finding, FindingKind, Incident, Link, Severity, severity_of
from ingero.diagnose.incidents.case_finding import CaseFinding
from ingero.units import format_percent

LOST_IN_BASELINE = "lost in the baseline to"  # the causes, in an incident's evidence


def merge_bottlenecks(found: Iterable[CaseFinding]) -> list[CaseFinding]:
    """The findings, each bottleneck merged into the largest incident of its process that is about the same fault.

    Ranks that lose time together are reported in the words of the one that loses most; a bottleneck that these words
    name already is dropped.
    """
    found = list(found)
    worse = sorted((one for one in found if one.kind is FindingKind.INCIDENT), key=lambda one: -one.finding.lost_ns)
    leads = {_identity(one.finding): one for one in reversed(worse)}
    merged: dict[int, CaseFinding] = {}  # by id of the incident's finding
    dropped: set[int] = set()
    others: list[tuple[CaseFinding, CaseFinding]] = []  # bottlenecks of ranks that do not lead, and the rank that does
    for bottleneck in (one for one in found if one.kind is FindingKind.BOTTLENECK and one.case):
        owners = [(one, leads[_identity(one.finding)]) for one in worse if _is_same_fault(one, bottleneck)]
        own = next((one for one, lead in owners if one is lead), None)
        if own is not None:
            dropped.add(id(bottleneck))
            severity = max(_severity(merged.get(id(own), own)), _severity(bottleneck))
            finding = replace(_with_bottleneck(merged.get(id(own), own).finding, bottleneck), severity=severity)
            merged[id(own)] = CaseFinding(finding, own.case)
        else:
            others += [(bottleneck, lead) for _, lead in owners[:1]]
    dropped |= {
        id(bottleneck)
        for bottleneck, lead in others
        if id(lead) in merged and _names_cause(merged[id(lead)].finding.evidence, bottleneck.finding.cause)
    }
    return [merged.get(id(one), one) for one in found if id(one) not in dropped]


def _names_cause(evidence: Mapping[str, Fact], cause: str) -> bool:
    return cause in str(evidence.get(LOST_IN_BASELINE, "")).split(", ")


def _identity(finding: Finding) -> tuple[str, str, str]:
    return finding.cause, finding.resource, finding.root


def covers(incident: Incident, bottleneck: Incident) -> bool:
    """Whether an incident reports a bottleneck already."""
    pids = {affected.process for affected in incident.affected}
    return _names_cause(incident.evidence, bottleneck.cause) and any(
        affected_process.process in pids for affected_process in bottleneck.affected
    )


def _is_same_fault(incident: CaseFinding, bottleneck: CaseFinding) -> bool:
    """Whether both are about one cause on one resource, or about waiting for one worker, whatever the worker did.

    Two lost times without a cause have nothing in common that is proven.
    """
    if incident.process != bottleneck.process:
        return False
    mine, theirs = incident.finding, bottleneck.finding
    is_same = _identity(mine) == _identity(theirs) and mine.cause != UNEXPLAINED
    return is_same or not set(mine.waited_for_pids).isdisjoint(theirs.waited_for_pids)


def _severity(found: CaseFinding) -> Severity:
    finding, wall_ns = found.finding, found.case.wall_ns if found.case else 0
    return finding.severity or severity_of(finding.lost_ns / max(wall_ns, 1))


def _with_bottleneck(finding: Finding, bottleneck: CaseFinding) -> Finding:
    other, wall_ns = bottleneck.finding, bottleneck.case.wall_ns if bottleneck.case else 0
    ratio = other.lost_ns / max(wall_ns, 1)
    how = "this way" if other.cause == finding.cause else f"to {other.cause}"
    causes = [str(finding.evidence[LOST_IN_BASELINE])] if LOST_IN_BASELINE in finding.evidence else []
    facts: dict[str, Fact] = {
        LOST_IN_BASELINE: ", ".join([*causes, other.cause]),
        f"lost in the baseline to {other.cause} (ratio)": ratio,
    }
    fixes = [fix for fix in other.fixes if fix not in finding.fixes]
    return replace(
        finding,
        summary=f"{finding.summary}; {format_percent(ratio)} of wall time is lost {how} even in the baseline",
        chain=(*finding.chain, Link(text=f"in the baseline: {other.summary}", seen_ns=other.lost_ns)),
        fixes=(*finding.fixes, *fixes),
        evidence={**finding.evidence, **facts},
    )
