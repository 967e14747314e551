"""`ingero explain` of a merged recording: the order in which incidents on its nodes began, as far as it is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingero.cli.merge.order_lines import Began, order_lines
from ingero.diagnose.findings import Incident
from ingero.diagnose.incidents.incident_json import Object
from ingero.fleet.merged_clocks import merged_clocks
from ingero.store.reader import Reader


def incident_order_lines(reader: Reader, incidents: Sequence[Incident]) -> Iterator[str]:
    """The lines of the order of incidents; none where all are on one node."""
    if len({incident.node for incident in incidents}) < 2:
        return
    found = merged_clocks(reader).in_order(incidents)
    began = [
        Began(entry.start_ns, entry.bound_ns, entry.incident.node, _incident_name(entry.incident), entry.is_known)
        for entry in found.placed
    ]
    others = ((entry.incident.node, entry.reason) for entry in found.not_placed)
    yield from order_lines(found.axis.text if found.axis else "", began, others)
    yield ""


def incident_order_json(reader: Reader, incidents: Sequence[Incident]) -> list[Object]:
    """The JSON of the order of incidents; empty where all are on one node."""
    if len({incident.node for incident in incidents}) < 2:
        return []
    found = merged_clocks(reader).in_order(incidents)
    placed: list[Object] = [
        {
            "node": entry.incident.node,
            "number": entry.incident.number,
            "start_ns": entry.start_ns,
            "bound_ns": entry.bound_ns,
            "is_order_known": entry.is_known,
        }
        for entry in found.placed
    ]
    return placed + [
        {"node": entry.incident.node, "number": entry.incident.number, "start_ns": None, "bound_ns": None,
         "is_order_known": False, "reason": entry.reason}
        for entry in found.not_placed
    ]  # fmt: skip


def _incident_name(incident: Incident) -> str:
    return f"{incident.cause}  [incident {incident.number}]"
