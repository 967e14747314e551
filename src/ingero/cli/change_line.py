"""An incident that opened, grew or closed while it was recorded, as one line."""

from __future__ import annotations

from ingero.diagnose.incidents.incident_changes import Change, ChangeKind
from ingero.units import format_ns, format_time_of_day


def change_line(change: Change, now_ns: int) -> str:
    """What happened to it: "13:55:03  incident 1 opened: HIGH cpu-contention since 13:55:01: python [7] lost ..."."""
    one = change.incident
    when = f"since {format_time_of_day(one.start_ns)}"
    if change.kind is ChangeKind.CLOSED and one.end_ns is not None:
        when = f"from {format_time_of_day(one.start_ns)} to {format_time_of_day(one.end_ns)}"
    lost = f", {format_ns(one.lost_ns)} lost in all" if change.kind is ChangeKind.CLOSED and one.lost_ns else ""
    return (
        f"{format_time_of_day(now_ns)}  incident {one.number} {change.kind.value}: {one.severity.name} {one.cause} "
        f"{when}{lost}: {one.summary}"
    )
