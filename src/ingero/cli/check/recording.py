"""`ingero check --recording`, for health checks: whether the last second has been written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingero.program import command
from ingero.store.errors import StoreError
from ingero.store.last_second import LIVE_NS, progress
from ingero.units import format_moment, format_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingState:
    """Whether a recording is being written, with a sentence and a fix. last_second_ns: unix time of its end."""

    is_written: bool
    found: str
    fix: str = ""
    last_second_ns: int | None = None


def recording_state(database: Path, now_ns: int) -> RecordingState:
    """Whether a recorder writes each second into a database. now_ns: unix time."""
    fix = command("trace", "--db", database, as_root=True)
    try:
        found = progress(database)
    except StoreError as error:
        return RecordingState(is_written=False, found=f"not recording: {error}", fix=error.hint)
    if found is None or found.stopped_ns is not None:
        when = f"; the last recording ended at {format_moment(found.stopped_ns or 0)}" if found else ""
        return RecordingState(is_written=False, found=f"nobody records into {database}{when}", fix=fix)
    if found.second_ns is None:
        begun = format_moment(found.started_ns)
        return RecordingState(is_written=False, found=f"{database}: begun at {begun}, no second is written yet")
    ago_ns = now_ns - found.second_ns
    age = f"the last second was written {format_ns(abs(ago_ns))} {'ago' if ago_ns >= 0 else 'from now'}"
    if abs(ago_ns) >= LIVE_NS:
        text = f"{database} is not being written: {age}"
        return RecordingState(is_written=False, found=text, fix=fix, last_second_ns=found.second_ns)
    return RecordingState(is_written=True, found=f"recording into {database}: {age}", last_second_ns=found.second_ns)
