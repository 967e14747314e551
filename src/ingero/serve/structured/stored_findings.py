"""What tracing itself found and stored: its incidents, or the chains of an older Ingero."""

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
    lost_json,
    noticed_json,
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
    """What was found while it was recorded, oldest first; chains: only where there are no incidents."""

    incidents: tuple[StoredIncident, ...]
    chains: tuple[CausalChain, ...]

    def __bool__(self) -> bool:
        """Whether anything was found."""
        return bool(self.incidents or self.chains)


def stored(reader: Reader, window: Window, *, pid: int | None = None, rule: str | None = None) -> Stored:
    """Of one process and of one cause, if asked. Of whom a chain is, an older Ingero did not store."""
    incidents = reader.incidents(window) if reader.is_recorded("incidents") else []
    later_ns = _FOUND_LATER_NS if reader.older_version else 0
    until = Window(begin_ns=window.begin_ns, end_ns=window.end_ns + later_ns)
    chains = [] if incidents else reader.causal_chains(until)
    return Stored(
        incidents=tuple(one for one in incidents if rule in (None, one.cause) and _is_about(one, pid)),
        chains=tuple(one for one in chains if rule in (None, one.root_cause)),
    )


def stored_lines(found: Stored, *, most: int | None = None) -> Iterator[str]:
    """A line or two each. most: of the chains, with how many more there are."""
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
    """The same with the keys of a diagnosis, without what could not be checked: nothing was diagnosed again.

    found: by node; under "" where the recording holds one.
    """
    return {
        "version": VERSION,
        "window": window_json(window),
        "incidents": [_incident_json(one) | {"node": node} for node, its in found.items() for one in its.incidents],
        "verdicts": [],
        "not_checked": [],
        "not_traced": {},
        "stored_chains": [asdict(one) for its in found.values() for one in its.chains],
    }


def _incident_json(one: StoredIncident) -> Object:
    """By the keys of `incident_json`; what is not stored is null or empty."""
    parsed = {name: json.loads(getattr(one, name)) for name in _JSON_COLUMNS}
    line = CodeLine(**parsed["line"]) if parsed["line"] else None
    where = Where(line=line) if line else Where(why_not="it was not stored while recording")
    return {
        "number": one.incident,
        "node": "",
        "cause": one.cause,
        "kind": one.kind,
        "severity": one.severity,
        "resource": one.resource,
        "root": one.root,
        "start_ns": one.start_ns,
        "end_ns": one.end_ns,
        "headline": one.summary,
        "impact": lost_json(one.lost_ns, one.lost_ratio or 0.0, one.peak or 0.0, one.explained_ratio or 0.0)
        | noticed_json(None),
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


def _is_about(one: StoredIncident, pid: int | None) -> bool:
    return pid is None or is_about(pid, [affected["pid"] for affected in json.loads(one.affected)], one.root)
