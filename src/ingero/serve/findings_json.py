"""A diagnosis as JSON: stable keys, times in unix ns, ratios from 0 to 1.

`cli/explain.schema.json` says what each key means. Keys may be added within a version; none is renamed or removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ingero.diagnose.model import (
    CodeLine,
    Culprit,
    Diagnosis,
    Fix,
    Incident,
    Link,
    NotEvaluated,
    ProcessVerdict,
    Victim,
)
from ingero.store.records import Window

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Object: TypeAlias = "dict[str, Json]"

VERSION = 1


def diagnosis_json(diagnosis: Diagnosis) -> Object:
    """Everything that was found, worst first, and what could not be looked at."""
    return {
        "version": VERSION,
        "window": window_json(diagnosis.window),
        "incidents": [incident_json(one) for one in diagnosis.incidents],
        "verdicts": [verdict_json(one) for one in diagnosis.verdicts],
        "not_evaluated": [_not_evaluated(one) for one in diagnosis.not_evaluated],
        "not_traced": dict(diagnosis.not_traced),
    }


def window_json(window: Window) -> Object:
    """From, up to but without, and its length."""
    return {"begin_ns": window.begin_ns, "end_ns": window.end_ns, "duration_ns": window.duration_ns}


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


def verdict_json(verdict: ProcessVerdict) -> Object:
    """What is said of a process as a whole."""
    return {
        "process": verdict.process,
        "pid": verdict.pid,
        "name": verdict.name,
        "text": verdict.text,
        "has_incident": verdict.has_incident,
    }


def _not_evaluated(one: NotEvaluated) -> Object:
    return {"cause": one.cause, "reason": one.reason}
