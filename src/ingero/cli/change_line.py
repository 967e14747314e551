"""An incident that opened, grew or closed while it was recorded, as one line."""

from __future__ import annotations

from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.units import format_ns, format_time_of_day


def change_line(change: Change, now_ns: int) -> str:
    """The change as a line: "13:55:03  incident 1 opened: HIGH cpu-contention since 13:55:01: python [7] lost ..."."""
    incident = change.incident
    when = f"since {format_time_of_day(incident.start_ns)}"
    if change.kind is ChangeKind.CLOSED and incident.end_ns is not None:
        when = f"from {format_time_of_day(incident.start_ns)} to {format_time_of_day(incident.end_ns)}"
    lost = (
        f", {format_ns(incident.lost_ns)} lost in all" if change.kind is ChangeKind.CLOSED and incident.lost_ns else ""
    )
    head = f"{format_time_of_day(now_ns)}  incident {incident.number} {change.kind.value}"
    return f"{head}: {incident.severity.name} {incident.cause} {when}{lost}: {incident.summary}"
