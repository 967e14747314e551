"""`ingero check --recording`: whether the last second has been written; what health checks of containers ask."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ingero.foreign_text import shell_word
from ingero.store.errors import StoreError
from ingero.store.reader import Reader, open_reader
from ingero.store.reader.contents import LIVE_NS
from ingero.units import format_moment, format_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingState:
    """is_written: the last second is there. found: a sentence. last_second_ns: unix time of its end; None: none."""

    is_written: bool
    found: str
    fix: str = ""
    last_second_ns: int | None = None


def recording_state(database: Path, now_ns: int) -> RecordingState:
    """Whether somebody records into a database, and gets as far as writing each second. now_ns: unix time."""
    try:
        with open_reader(database) as reader:
            return _state(reader, database, now_ns)
    except StoreError as error:
        return RecordingState(is_written=False, found=f"not recording: {error}", fix=error.hint)


def _state(reader: Reader, database: Path, now_ns: int) -> RecordingState:
    fix = f"sudo ingero trace --db {shell_word(str(database))}"
    sessions = reader.sessions()
    if not sessions or sessions[-1].stopped_ns is not None:
        when = f"; the last recording ended at {format_moment(sessions[-1].stopped_ns or 0)}" if sessions else ""
        return RecordingState(is_written=False, found=f"nobody records into {database}{when}", fix=fix)
    last_ns = reader.last_second_ns()
    if last_ns is None:
        begun = format_moment(sessions[-1].started_ns)
        return RecordingState(is_written=False, found=f"{database}: begun at {begun}, no second is written yet")
    age = f"the last second was written {format_ns(abs(now_ns - last_ns))} {'ago' if now_ns >= last_ns else 'from now'}"
    if abs(now_ns - last_ns) >= LIVE_NS:
        return RecordingState(
            is_written=False, found=f"{database} is not being written: {age}", fix=fix, last_second_ns=last_ns
        )
    return RecordingState(is_written=True, found=f"recording into {database}: {age}", last_second_ns=last_ns)
