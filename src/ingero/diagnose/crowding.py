"""Threads of one job that crowd each other because one of them came to compute more: that is one incident, not two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ingero.diagnose.model import Bucket, Finding
from ingero.diagnose.rules import self_oversubscription
from ingero.diagnose.workers import COLLECTING, ON_CPU, PASSING
from ingero.units import format_ns

_AT_WORK = frozenset({ON_CPU, COLLECTING, PASSING})


def with_crowding(findings: Sequence[Finding]) -> list[Finding]:
    """The findings of one case; what crowding cost goes to the larger finding whose work the threads crowd for."""
    crowding = next((one for one in findings if one.cause == self_oversubscription.CAUSE), None)
    busy = [one for one in findings if one is not crowding and _computes(one)]
    work = max(busy, key=lambda one: one.lost_ns, default=None)
    if crowding is None or work is None or work.lost_ns < crowding.lost_ns:
        return list(findings)
    others = (one for one in findings if one is not crowding)
    return [_joined(one, crowding) if one is work else one for one in others]


def _computes(finding: Finding) -> bool:
    """Whether most of it is time in which the job's own threads ran."""
    ran = sum(ns for bucket, ns in finding.claims.items() if bucket.state == "run")
    return 2 * ran > finding.lost_ns > 0 or finding.evidence.get("worker was") in _AT_WORK


def _joined(work: Finding, crowding: Finding) -> Finding:
    crowded = format_ns(crowding.lost_ns)
    return replace(
        work,
        summary=f"{work.summary}; {crowded} more while its threads waited for each other's CPU meanwhile",
        claims=_sum((work.claims, crowding.claims)),
        chain=(*work.chain, *(replace(one, text=f"for that work {one.text}") for one in crowding.chain[:1])),
        evidence={**work.evidence, "waiting for own threads' CPU (ns)": crowding.lost_ns},
    )


def _sum(claims: Iterable[Mapping[Bucket, int]]) -> dict[Bucket, int]:
    total: dict[Bucket, int] = {}
    for one in claims:
        for bucket, ns in one.items():
            total[bucket] = total.get(bucket, 0) + ns
    return total
