"""Findings stored while recording: incidents, or the chains of an older Ingero."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from ingero.diagnose.findings import CodeLine, Where
from ingero.diagnose.incidents.concerns import is_about
from ingero.diagnose.incidents.incident_json import (
    Object,
    breakdown_json,
    culprit_json,
    evidence_json,
    impact_details_json,
    lost_json,
    where_json,
)
from ingero.serve.structured.findings_json import VERSION, window_json
from ingero.store.reader import Reader
from ingero.store.records import CausalChain, StoredIncident, Window
from ingero.units import SECOND_NS, format_count, format_moment, format_ns, format_percent

_FOUND_LATER_NS = 10 * SECOND_NS  # an older Ingero stored a chain up to so long after what it is about
_JSON_COLUMNS = ("affected", "culprits", "evidence", "fixes", "line", "chain", "breakdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Findings stored while recording, oldest first; chains: only where there are no incidents."""

    incidents: tuple[StoredIncident, ...]
    chains: tuple[CausalChain, ...]

    def __bool__(self) -> bool:
        """Whether anything was found."""
        return bool(self.incidents or self.chains)


def stored(reader: Reader, window: Window, *, pid: int | None = None, rule: str | None = None) -> Stored:
    """The stored findings of one process and one cause, if given. An older Ingero stored no process of a chain."""
    incidents = reader.incidents(window) if reader.is_recorded("incidents") else []
    later_ns = _FOUND_LATER_NS if reader.older_version else 0
    until = Window(begin_ns=window.begin_ns, end_ns=window.end_ns + later_ns)
    chains = [] if incidents else reader.causal_chains(until)
    return Stored(
        incidents=tuple(
            incident for incident in incidents if rule in (None, incident.cause) and _is_about(incident, pid)
        ),
        chains=tuple(chain for chain in chains if rule in (None, chain.root_cause)),
    )


def stored_lines(found: Stored, *, most: int | None = None) -> Iterator[str]:
    """One or two lines per finding. most: number of chains shown, followed by the number of the rest."""
    for one in found.incidents:
        ended = (
            "ongoing" if one.end_ns is None else f"until {format_moment(one.end_ns, of_ns=one.end_ns - one.start_ns)}"
        )
        lost = f", lost {format_ns(one.lost_ns)} ({format_percent(one.lost_ratio or 0)})" if one.lost_ns else ""
        yield f"{format_moment(one.start_ns)}  {one.severity}  {one.cause}  {ended}{lost}"
        yield f"  {one.summary}"
    for chain in found.chains[:most]:
        yield f"{format_moment(chain.detected_ns)}  {chain.severity}  {chain.root_cause}"
        yield f"  {chain.summary}"
    if most is not None and len(found.chains) > most:
        yield f"and {format_count(len(found.chains) - most)} more: --chains"
    if not found:
        yield "Nothing was found while this was recorded."


def stored_json(found: Mapping[str, Stored], window: Window) -> Object:
    """The stored findings as JSON with the keys of a diagnosis, without what could not be checked.

    found: by node; under "" where the recording holds one.
    """
    return {
        "version": VERSION,
        "window": window_json(window),
        "incidents": [
            _incident_json(incident) | {"node": node} for node, its in found.items() for incident in its.incidents
        ],
        "verdicts": [],
        "not_checked": [],
        "not_traced": {},
        "stored_chains": [asdict(chain) for its in found.values() for chain in its.chains],
    }


def _incident_json(incident: StoredIncident) -> Object:
    """A stored incident by the keys of `incident_json`; what is not stored is null or empty."""
    parsed = {name: json.loads(getattr(incident, name)) for name in _JSON_COLUMNS}
    line = CodeLine(**parsed["line"]) if parsed["line"] else None
    where = Where(line=line) if line else Where(why_not="it was not stored while recording")
    return {
        "number": incident.incident,
        "node": "",
        "cause": incident.cause,
        "kind": incident.kind,
        "severity": incident.severity,
        "resource": incident.resource,
        "root": incident.root,
        "start_ns": incident.start_ns,
        "end_ns": incident.end_ns,
        "headline": incident.summary,
        "impact": lost_json(
            incident.lost_ns, incident.lost_ratio or 0.0, incident.peak or 0.0, incident.explained_ratio or 0.0
        )
        | impact_details_json(None),
        "where": where_json(where),
        "fix": parsed["fixes"],
        "breakdown": breakdown_json(parsed["breakdown"]),
        "affected": parsed["affected"],
        "culprits": [culprit_json(culprit) for culprit in parsed["culprits"]],
        "contributing": [],
        "evidence": [evidence_json(link) for link in parsed["chain"]],
        "timeline": [],
        "details": parsed["evidence"],
    }


def _is_about(incident: StoredIncident, pid: int | None) -> bool:
    return pid is None or is_about(pid, [affected["pid"] for affected in json.loads(incident.affected)], incident.root)
