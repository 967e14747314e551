"""`ingero explain` of a merged recording: in which order incidents on its nodes began, as far as that is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingero.cli.merge.order_lines import Began, order_lines
from ingero.diagnose.findings import Incident
from ingero.diagnose.incidents.incident_json import Object
from ingero.fleet.merged_clocks import merged_clocks
from ingero.store.reader import Reader


def incident_order_lines(reader: Reader, incidents: Sequence[Incident]) -> Iterator[str]:
    """Nothing where they are all on one node."""
    if len({one.node for one in incidents}) < 2:
        return
    found = merged_clocks(reader).in_order(incidents)
    began = [
        Began(one.start_ns, one.bound_ns, one.incident.node, _named(one.incident), one.is_known) for one in found.placed
    ]
    others = ((one.incident.node, one.reason) for one in found.not_placed)
    yield from order_lines(found.axis.text if found.axis else "", began, others)
    yield ""


def incident_order_json(reader: Reader, incidents: Sequence[Incident]) -> list[Object]:
    """The same for programs."""
    if len({one.node for one in incidents}) < 2:
        return []
    found = merged_clocks(reader).in_order(incidents)
    placed: list[Object] = [
        {
            "node": one.incident.node,
            "number": one.incident.number,
            "start_ns": one.start_ns,
            "bound_ns": one.bound_ns,
            "is_order_known": one.is_known,
        }
        for one in found.placed
    ]
    return placed + [
        {"node": one.incident.node, "number": one.incident.number, "start_ns": None, "bound_ns": None,
         "is_order_known": False, "reason": one.reason}
        for one in found.not_placed
    ]  # fmt: skip


def _named(incident: Incident) -> str:
    return f"{incident.cause}  [incident {incident.number}]"
