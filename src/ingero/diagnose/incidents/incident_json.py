"""An incident as JSON: `trace --json`, `explain --json`, MCP and the dashboard give the same keys.

Keys are in the order in which people read them; `serve/text/incident_form.py` renders the same parts as text. Keys
may be added within a version; none is renamed or removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

from ingero.events import STATE_TEXTS

if TYPE_CHECKING:
    from ingero.diagnose.findings import Affected, CodeLine, Contributing, Culprit, Fix, Impact, Incident, Link, Where

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Object: TypeAlias = "dict[str, Json]"

# The parts of a step or sync interval in which time is lost: by `findings.Part`, the name in JSON and the text.
_PARTS = {
    "idle": ("idle", "GPU idle (nothing queued)"),
    "launch": ("launch", "while launching"),
    "gpu": ("busy", "GPU busy"),
    "return_delay": ("return_delay", "sync return delay"),
    "host": ("host", "host time of the step"),
    "blocked": ("blocked", "blocked on the GPU"),
}
_STATES = STATE_TEXTS | {"gpu_execution": "GPU execution", "unknown": "unattributed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Lost time in one part of the steps and one state of the critical-path thread.

    share_ratio: of the incident's lost time.
    """

    part: str
    state: str
    text: str
    lost_ns: int
    share_ratio: float


def incident_json(incident: Incident) -> Object:
    """One incident; end_ns null: it is ongoing."""
    return {
        "number": incident.number,
        "node": incident.node,
        "cause": incident.cause,
        "kind": incident.kind.value,
        "severity": incident.severity.name,
        "resource": incident.resource,
        "root": incident.root,
        "start_ns": incident.start_ns,
        "end_ns": incident.end_ns,
        "headline": incident.summary,
        "impact": impact_json(incident),
        "where": where_json(incident.where),
        "fix": [record_json(fix) for fix in incident.fixes],
        "breakdown": breakdown_json(incident.breakdown),
        "affected": [record_json(affected_process) for affected_process in incident.affected],
        "culprits": [culprit_json(record_json(culprit)) for culprit in incident.culprits],
        "contributing": [record_json(contribution) for contribution in incident.contributing],
        "evidence": [evidence_json(record_json(one)) for one in incident.chain],
        "timeline": [asdict(piece) for piece in incident.timeline],
        "details": dict(incident.evidence),
    }


def impact_json(incident: Incident) -> Object:
    """Lost time of the incident, and its impact on the worst affected process; null where no step of it is known."""
    return lost_json(
        incident.lost_ns, incident.lost_ratio, incident.peak_ratio, incident.explained_ratio
    ) | impact_details_json(incident.impact)


def lost_json(lost_ns: int, lost_ratio: float, peak_ratio: float, explained_ratio: float) -> Object:
    """The lost time, its share of wall time, the peak share in one second, and the share that all causes explain."""
    return {
        "lost_ns": lost_ns,
        "lost_ratio": lost_ratio,
        "peak_ratio": peak_ratio,
        "explained_ratio": explained_ratio,
    }


def impact_details_json(impact: Impact | None) -> Object:
    """Steps or sync intervals and context switches, against the baseline."""
    from ingero.diagnose.findings import Impact  # noqa: PLC0415  # the diagnosis: code that only reads needs none of it

    return {name: getattr(impact, name) if impact else None for name in Impact.__dataclass_fields__}


def where_json(where: Where) -> Object:
    """The line and the call on the critical path; file, line and function null: not known, and `reason` says why."""
    line = where.line
    return {
        "text": where.text,
        "file": line.file if line else None,
        "line": line.line if line else None,
        "function": line.function if line else None,
        "waiting_thread": line.waiting_thread if line else "",
        "thread": where.who,
        "call": where.call,
        "state": where.state,
        "per": where.per,
        "mean_ns": where.mean_ns,
        "baseline_mean_ns": where.baseline_ns,
        "longest_ns": where.longest_ns,
        "is_exact": where.is_exact,
        "reason": where.why_not,
    }


def breakdown_of(breakdown: Mapping[str, int]) -> tuple[Lost, ...]:
    """The lost time of an incident by "part.state", most first."""
    total = max(sum(breakdown.values()), 1)
    return tuple(_lost(name, ns, total) for name, ns in sorted(breakdown.items(), key=lambda item: -item[1]))


def breakdown_json(breakdown: Mapping[str, int]) -> list[Object]:
    """The lost time of an incident by "part.state" as JSON, most first."""
    return [asdict(one) for one in breakdown_of(breakdown)]


def _lost(name: str, lost_ns: int, total: int) -> Lost:
    part, _, state = name.partition(".")
    key, place = _PARTS.get(part, (part, part))
    text = place if part == state or not state else f"{place}: {_STATES.get(state, state)}"
    return Lost(part=key, state=state, text=text, lost_ns=lost_ns, share_ratio=lost_ns / total)


def culprit_json(culprit: Mapping[str, Json]) -> Object:
    """A culprit, stored by field names, under its published keys."""
    return {"context_switches" if name == "switches" else name: value for name, value in culprit.items()}


def evidence_json(link: Mapping[str, Json]) -> Object:
    """A link of the chain of evidence, stored by field names, under its published keys."""
    return {"source" if name == "structure" else name: value for name, value in link.items()}


def record_json(record: Affected | Culprit | Link | Fix | CodeLine | Contributing) -> Object:
    """One part of an incident by the names of its fields, as stored incidents hold it."""
    return asdict(record)
