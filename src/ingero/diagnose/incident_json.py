"""An incident as JSON, the same in the database, in `trace --json` and in `explain --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

from ingero.diagnose.model import CodeLine, Culprit, Fix, Incident, Link, Victim

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
        "victims": [victim_json(one) for one in incident.victims],
        "culprits": [culprit_json(one) for one in incident.culprits],
        "line": line_json(incident.line),
        "chain": [link_json(one) for one in incident.chain],
        "fixes": [fix_json(one) for one in incident.fixes],
        "account": dict(incident.account),
        "evidence": dict(incident.evidence),
        "impact": asdict(incident.impact) if incident.impact else None,
        "timeline": [asdict(one) for one in incident.timeline],
    }


def victim_json(victim: Victim) -> Object:
    """A process that lost time."""
    return {
        "process": victim.process,
        "pid": victim.pid,
        "name": victim.name,
        "lost_ns": victim.lost_ns,
        "rank": victim.rank,
        "container": victim.container,
    }


def culprit_json(culprit: Culprit) -> Object:
    """Who took the time; switches null: not counted."""
    return {
        "pid": culprit.pid,
        "name": culprit.name,
        "lost_ns": culprit.lost_ns,
        "switches": culprit.switches,
        "container": culprit.container,
    }


def link_json(link: Link) -> Object:
    """One link of a chain; expected_ns null: there is no reference for it."""
    return {
        "text": link.text,
        "seen_ns": link.seen_ns,
        "expected_ns": link.expected_ns,
        "structure": link.structure,
        "order": link.order,
    }


def fix_json(fix: Fix) -> Object:
    """What to do; command "": there is none to copy."""
    return {"text": fix.text, "command": fix.command}


def line_json(line: CodeLine | None) -> Object | None:
    """A place in the workload's code; line 0: only the function is known."""
    return None if line is None else {"file": line.file, "line": line.line, "function": line.function}
