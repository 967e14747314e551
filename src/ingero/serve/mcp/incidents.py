"""Diagnoses as an assistant is told them: the JSON of an incident with marked strings, and a short text beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ingero.serve.mcp.untrusted import harmless, traced
from ingero.units import format_ns, format_percent

if TYPE_CHECKING:
    from ingero.diagnose.model import Diagnosis, Incident
    from ingero.store.records import CausalChain, Window

# Members whose value is one of ingero's own words; every other string in an incident may hold a traced name.
_OWN_WORDS = frozenset({"cause", "kind", "severity"})
_MAX_SENTENCE = 2048


def window_json(window: Window) -> dict[str, int]:
    """From, up to but without, and its length."""
    return {"begin_ns": window.begin_ns, "end_ns": window.end_ns, "duration_ns": window.duration_ns}


def incident_json(incident: Incident) -> dict[str, Any]:
    """One incident with the keys of `Incident`, traced strings marked."""
    plain = msgspec.to_builtins(incident) | {"severity": incident.severity.name}
    return {name: value if name in _OWN_WORDS else _marked(value) for name, value in plain.items()}


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """What is said beside the incidents."""
    return {
        "window": window_json(diagnosis.window),
        "verdicts": [
            {"pid": one.pid, "name": traced(one.name), "text": traced(one.text), "has_incident": one.has_incident}
            | ({"node": traced(one.node)} if one.node else {})
            for one in diagnosis.verdicts
        ],
        "not_evaluated": [{"cause": one.cause, "reason": traced(one.text)} for one in diagnosis.not_evaluated],
        "not_traced": {source: traced(reason) for source, reason in diagnosis.not_traced.items()},
    }


def stored_chain_json(chain: CausalChain) -> dict[str, Any]:
    """A chain of an older Ingero."""
    return {
        "id": traced(chain.chain_id),
        "detected_ns": chain.detected_ns,
        "severity": traced(chain.severity),
        "summary": traced(chain.summary),
        "root_cause": traced(chain.root_cause),
        "explanation": traced(chain.explanation, most=_MAX_SENTENCE),
        "op": traced(chain.cuda_op),
    }


def incident_line(incident: Incident) -> str:
    """One line of a list."""
    return (
        f"#{incident.number} {incident.severity.name} {incident.cause}{_on(incident.node)}: "
        f"{traced(incident.summary, most=_MAX_SENTENCE)} "
        f"({format_ns(incident.lost_ns)} lost, {format_percent(incident.lost_ratio)} of its wall time)"
    )


def _on(node: str) -> str:
    return f" on {traced(node)}" if node else ""


def incident_text(incident: Incident) -> Iterator[str]:
    """One incident from end to end."""
    yield incident_line(incident)
    for number, link in enumerate(incident.chain, 1):
        usual = "" if link.expected_ns is None else f", expected {format_ns(link.expected_ns)}"
        seen = f" [{format_ns(link.seen_ns)} seen{usual}]" if link.seen_ns else ""
        yield f"  {number}. {traced(link.text, most=_MAX_SENTENCE)}{seen}"
    for culprit in incident.culprits:
        took = f" took {format_ns(culprit.lost_ns)}" if culprit.lost_ns else ""
        yield f"  culprit: {traced(culprit.name)} (pid {culprit.pid}){took}"
    if incident.line:
        yield f"  line: {traced(str(incident.line))}"
    breakdown = sorted(incident.breakdown.items(), key=lambda item: -item[1])
    if breakdown:
        yield f"  lost by part and state: {', '.join(f'{name} {format_ns(ns)}' for name, ns in breakdown if ns)}"
    if incident.evidence:
        yield f"  evidence: {', '.join(f'{name} {_fact(value)}' for name, value in incident.evidence.items())}"
    yield f"  {format_percent(incident.explained_ratio)} of the loss is explained"
    for fix in incident.fixes:
        command = f": {traced(fix.command)}" if fix.command else ""
        yield f"  fix: {traced(fix.text)}{command}"


def no_incident_text(diagnosis: Diagnosis) -> Iterator[str]:
    """What is to be said where nothing was found: that is no all-clear for what could not be looked at."""
    if diagnosis.verdicts:
        yield f"No incident was found in {format_ns(diagnosis.window.duration_ns)}."
    else:
        yield "This recording holds no account of a process's use of its GPU: nothing can be said about lost time."
    yield from (f"  {traced(one.name)} ({one.pid}){_on(one.node)}: {traced(one.text)}" for one in diagnosis.verdicts)
    causes: dict[str, list[str]] = defaultdict(list)
    for missing in diagnosis.not_evaluated:
        causes[missing.text].append(missing.cause)
    yield from (f"Not evaluated ({traced(reason)}): {', '.join(names)}" for reason, names in causes.items())


def concerns(incident: Incident, pids: Iterable[int]) -> bool:
    """Whether one of these processes lost or took time in it."""
    involved = {one.pid for one in incident.affected} | {one.pid for one in incident.culprits}
    return not involved.isdisjoint(pids)


def _fact(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else traced(value) if isinstance(value, str) else str(value)


def _marked(value: Any) -> Any:  # any JSON value
    if isinstance(value, str):
        return traced(value, most=_MAX_SENTENCE)
    if isinstance(value, Mapping):
        return {harmless(name): _marked(one) for name, one in value.items()}
    return [_marked(one) for one in value] if isinstance(value, (list, tuple)) else value
