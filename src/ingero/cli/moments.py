"""Moments as people write them on the command line."""

from __future__ import annotations

import re
from datetime import datetime

from ingero.errors import IngeroError

_UNIX = re.compile(r"(\d{9,11})(?:\.(\d{1,9}))?")  # seconds
_UNIX_NS = re.compile(r"\d{18,19}")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?")


class MomentError(IngeroError):
    """A text is no moment."""


def parse_moment_ns(text: str, *, near_ns: int) -> int:
    """Unix ns of `2026-11-21 13:40:05`, with or without zone, `13:40` on the day of `near_ns`, or of unix seconds.

    Without a zone it is local time.

    Raises:
        MomentError: it is none of these.
    """
    if _UNIX_NS.fullmatch(text):
        return int(text)
    unix = _UNIX.fullmatch(text)
    if unix:
        return int(unix[1]) * 1_000_000_000 + int((unix[2] or "").ljust(9, "0"))
    if _CLOCK.fullmatch(text):
        text = f"{datetime.fromtimestamp(near_ns / 1e9).astimezone():%Y-%m-%d} {text.zfill(5)}"
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    except ValueError as error:
        raise MomentError(
            f"{text!r} is no moment", hint='write it like "2026-11-21 13:40:05", 13:40 or 1795268405'
        ) from error
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
