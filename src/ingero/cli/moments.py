"""Moments as people write them on the command line."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from ingero.errors import IngeroError
from ingero.store.records import Window

_UNIX = re.compile(r"(\d{9,11})(?:\.(\d{1,9}))?")  # seconds
_UNIX_NS = re.compile(r"\d{18,19}")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::[0-5]\d(?:\.\d+)?)?")
_MOST_NS = 2**63 - 1  # SQLite holds no more: the year 2262
_HINT = 'write it like 14:05, 14:05:30, "2026-11-21 14:05:30" or as unix seconds'


class MomentError(IngeroError):
    """A text is not a time, or the moments leave nothing between them."""


def parse_moment_ns(text: str, recorded: Window) -> int:
    """Unix ns of `2026-11-21 14:05:30`, with or without zone, of `14:05`, or of unix seconds.

    Without a zone it is local time. A time without a day is the last such moment while it was recorded; where there is
    none, the one nearest to the recording. What 64 bits do not hold becomes the nearest that they do.

    Raises:
        MomentError: it is none of these.
    """
    return max(-_MOST_NS, min(_moment_ns(text, recorded), _MOST_NS))


def _moment_ns(text: str, recorded: Window) -> int:
    if _UNIX_NS.fullmatch(text):
        return int(text)
    unix = _UNIX.fullmatch(text)
    if unix:
        return int(unix[1]) * 1_000_000_000 + int((unix[2] or "").ljust(9, "0"))
    try:
        if _CLOCK.fullmatch(text):
            return min(_on_days_around(text, recorded), key=lambda one: (_outside_ns(one, recorded), -one))
        return _unix_ns(datetime.fromisoformat(text.replace("Z", "+00:00")))
    except (ValueError, OverflowError) as error:
        raise MomentError(f"{text!r} is not a time", hint=_HINT) from error


def _on_days_around(text: str, recorded: Window) -> list[int]:
    """That time on the day on which the recording ended, the day before, and the day after."""
    hour, minute, second = (*text.split(":"), "0")[:3]
    last = datetime.fromtimestamp(recorded.end_ns / 1e9)  # noqa: DTZ006  # users write local time
    moment = last.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
    return [_unix_ns(moment + timedelta(days=days)) + round(float(second) * 1e9) for days in (-1, 0, 1)]


def _outside_ns(moment_ns: int, recorded: Window) -> int:
    return max(recorded.begin_ns - moment_ns, moment_ns - recorded.end_ns, 0)


def _unix_ns(moment: datetime) -> int:
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000_000 + moment.microsecond * 1000
