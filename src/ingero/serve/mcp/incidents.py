"""Diagnoses for an assistant: the JSON of an incident with marked strings, and a short text beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ingero.diagnose.incidents import incident_json as form
from ingero.serve.mcp.untrusted import harmless, traced
from ingero.serve.text.incident_form import details, sections
from ingero.units import format_ns, format_percent

if TYPE_CHECKING:
    from ingero.diagnose.findings import Diagnosis, Incident
    from ingero.store.records import CausalChain, Window

# Members whose strings are all ingero's own words; every other string in an incident may hold a traced name.
_OWN_WORDS = frozenset({"cause", "kind", "severity", "impact", "breakdown", "timeline"})
_MAX_SENTENCE = 2048


def window_json(window: Window) -> dict[str, int]:
    """From, up to but without, and its length."""
    return {"begin_ns": window.begin_ns, "end_ns": window.end_ns, "duration_ns": window.duration_ns}


def incident_json(incident: Incident) -> dict[str, Any]:
    """One incident with the keys of every other JSON of it, traced strings marked."""
    plain = form.incident_json(incident)
    return {name: value if name in _OWN_WORDS else _marked(value) for name, value in plain.items()}


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Everything beside the incidents."""
    return {
        "window": window_json(diagnosis.window),
        "verdicts": [
            {
                "pid": verdict.pid,
                "name": traced(verdict.name),
                "text": traced(verdict.text),
                "has_incident": verdict.has_incident,
            }
            | ({"node": traced(verdict.node)} if verdict.node else {})
            for verdict in diagnosis.verdicts
        ],
        "not_checked": [{"cause": spot.cause, "reason": traced(spot.text)} for spot in diagnosis.not_evaluated],
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
        f"{traced(incident.summary, most=_MAX_SENTENCE)} ({format_ns(incident.lost_ns)} lost, "
        f"{format_percent(incident.lost_ratio)} {incident.of_wall_time})"
    )


def _on(node: str) -> str:
    return f" on {traced(node)}" if node else ""


def incident_text(incident: Incident) -> Iterator[str]:
    """One incident from end to end: the sections that `ingero explain` prints, and the numbers behind the evidence."""
    yield incident_line(incident)
    behind = details(incident)
    for section in (*sections(incident), *([behind] if behind else ())):
        yield f"  {section.title}:"
        yield from (f"    {line if section.is_own else _marked_line(line)}" for line in section.lines)


def _marked_line(line: str) -> str:
    """A line of a section with its indentation outside the marks."""
    text = line.lstrip(" ")
    return line[: len(line) - len(text)] + traced(text, most=_MAX_SENTENCE)


def no_incident_text(diagnosis: Diagnosis) -> Iterator[str]:
    """The text if no incident was found, which proves nothing about causes that could not be checked."""
    if diagnosis.verdicts:
        yield f"No incidents found in {format_ns(diagnosis.window.duration_ns)}."
    else:
        yield "This recording has no steps and no GPU syncs: lost time cannot be measured."
    yield from (
        f"  {traced(verdict.name)} ({verdict.pid}){_on(verdict.node)}: {traced(verdict.text)}"
        for verdict in diagnosis.verdicts
    )
    causes: dict[str, list[str]] = defaultdict(list)
    for missing in diagnosis.not_evaluated:
        causes[missing.text].append(missing.cause)
    yield from (f"Not checked ({traced(reason)}): {', '.join(names)}" for reason, names in causes.items())


def concerns(incident: Incident, pids: Iterable[int]) -> bool:
    """Whether one of these processes is affected by it or a culprit."""
    involved = {affected_process.pid for affected_process in incident.affected} | {
        culprit.pid for culprit in incident.culprits
    }
    return not involved.isdisjoint(pids)


def _marked(value: Any) -> Any:  # any JSON value
    if isinstance(value, str):
        return traced(value, most=_MAX_SENTENCE)
    if isinstance(value, Mapping):
        return {harmless(name): _marked(one) for name, one in value.items()}
    return [_marked(one) for one in value] if isinstance(value, (list, tuple)) else value
