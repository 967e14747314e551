"""Parses points in time as users write them on the command line."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from ingero.errors import IngeroError
from ingero.store.records import Window

_UNIX = re.compile(r"(\d{9,11})(?:\.(\d{1,9}))?")  # seconds
_UNIX_NS = re.compile(r"\d{18,19}")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::[0-5]\d(?:\.\d+)?)?")
_MAX_NS = 2**63 - 1  # SQLite holds no more: the year 2262
_HINT = 'write it like 14:05, 14:05:30, "2026-11-21 14:05:30" or as unix seconds'


class TimeOptionError(IngeroError):
    """A text is not a time, or there is nothing between two times."""


def parse_time_ns(text: str, recorded: Window) -> int:
    """Unix ns of `2026-11-21 14:05:30`, with or without zone, of `14:05`, or of unix seconds.

    Without a zone it is local time. A time without a day is the last such time within the recording, or else the one
    nearest to it. Times are clamped to 64 bits.

    Raises:
        TimeOptionError: the text is none of these.
    """
    return max(-_MAX_NS, min(_time_ns(text, recorded), _MAX_NS))


def _time_ns(text: str, recorded: Window) -> int:
    if _UNIX_NS.fullmatch(text):
        return int(text)
    unix = _UNIX.fullmatch(text)
    if unix:
        return int(unix[1]) * 1_000_000_000 + int((unix[2] or "").ljust(9, "0"))
    try:
        if _CLOCK.fullmatch(text):
            return min(_candidates_ns(text, recorded), key=lambda time_ns: (_outside_ns(time_ns, recorded), -time_ns))
        return _unix_ns(datetime.fromisoformat(text.replace("Z", "+00:00")))
    except (ValueError, OverflowError) as error:
        raise TimeOptionError(f"{text!r} is not a time", hint=_HINT) from error


def _candidates_ns(text: str, recorded: Window) -> list[int]:
    """The unix ns of a time of day on the day on which the recording ended, the day before, and the day after."""
    hour, minute, second = (*text.split(":"), "0")[:3]
    last = datetime.fromtimestamp(recorded.end_ns / 1e9)  # noqa: DTZ006  # users write local time
    moment = last.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
    return [_unix_ns(moment + timedelta(days=days)) + round(float(second) * 1e9) for days in (-1, 0, 1)]


def _outside_ns(time_ns: int, recorded: Window) -> int:
    return max(recorded.begin_ns - time_ns, time_ns - recorded.end_ns, 0)


def _unix_ns(moment: datetime) -> int:
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000_000 + moment.microsecond * 1000
