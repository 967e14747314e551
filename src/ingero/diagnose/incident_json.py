"""An incident as JSON, the same in the database, in `trace --json` and in `explain --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ingero.diagnose.model import Affected, CodeLine, Culprit, Fix, Incident, Link

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Object: TypeAlias = "dict[str, Json]"


def incident_json(incident: Incident) -> Object:
    """One incident; end_ns null: it goes on."""
    return {
        "number": incident.number,
        "cause": incident.cause,
        "resource": incident.resource,
        "root": incident.root,
        "kind": incident.kind.value,
        "severity": incident.severity.name,
        "start_ns": incident.start_ns,
        "end_ns": incident.end_ns,
        "lost_ns": incident.lost_ns,
        "lost_ratio": incident.lost_ratio,
        "explained_ratio": incident.explained_ratio,
        "peak_ratio": incident.peak_ratio,
        "summary": incident.summary,
        "affected": [record_json(one) for one in incident.affected],
        "culprits": [record_json(one) for one in incident.culprits],
        "line": record_json(incident.line) if incident.line else None,
        "chain": [record_json(one) for one in incident.chain],
        "fixes": [record_json(one) for one in incident.fixes],
        "breakdown": dict(incident.breakdown),
        "evidence": dict(incident.evidence),
        "impact": asdict(incident.impact) if incident.impact else None,
        "timeline": [asdict(one) for one in incident.timeline],
        "node": incident.node,
    }


def record_json(record: Affected | Culprit | Link | Fix | CodeLine) -> Object:
    """One part of an incident; its keys are the record's fields, and so part of the promise."""
    return asdict(record)
