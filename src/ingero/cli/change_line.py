"""An incident that opened, grew or closed while it was recorded, as one line."""

from __future__ import annotations

import time

from ingero.diagnose.tracking import Change, ChangeKind
from ingero.units import format_ns


def change_line(change: Change, now_ns: int) -> str:
    """What happened to it: "13:55:03  incident 1 opened: HIGH cpu-contention since 13:55:01: python [7] lost ..."."""
    one = change.incident
    when = f"since {_clock(one.start_ns)}"
    if change.kind is ChangeKind.CLOSED and one.end_ns is not None:
        when = f"from {_clock(one.start_ns)} to {_clock(one.end_ns)}"
    lost = f", {format_ns(one.lost_ns)} lost in all" if change.kind is ChangeKind.CLOSED and one.lost_ns else ""
    return (
        f"{_clock(now_ns)}  incident {one.number} {change.kind.value}: {one.severity.name} {one.cause} {when}{lost}: "
        f"{one.summary}"
    )


def _clock(unix_ns: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(unix_ns / 1e9))
