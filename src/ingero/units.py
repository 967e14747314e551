"""Parses and formats quantities and times for users."""

from __future__ import annotations

import re
import time
from collections.abc import Set

from ingero.errors import IngeroError

SECOND_NS = 1_000_000_000

_TO_THE_MS_NS = 10 * SECOND_NS  # of what is shorter whole seconds say too little
_NS_STEPS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
_BYTE_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class QuantityError(IngeroError):
    """The text is no quantity of the expected kind."""


def parse_duration_s(text: str) -> float:
    """Seconds of `90s`, `5m`, `1h30m`, `2d`, `250ms` or a plain number of seconds.

    Raises:
        QuantityError: it is none of these, or negative.
    """
    if text.endswith("ms") and text[:-2].replace(".", "", 1).isdecimal():
        return float(text[:-2]) / 1000
    import pytimeparse2  # noqa: PLC0415  # takes 10 ms, and most commands read no duration

    seconds = pytimeparse2.parse(text)
    if not isinstance(seconds, (int, float)) or seconds < 0:
        raise QuantityError(f"{text!r} is not a duration", hint="write it like 90s, 5m, 1h30m or 2d")
    return float(seconds)


def parse_size_bytes(text: str) -> int:
    """Bytes of `500m`, `10g`, `64KiB` (factors of 1024) or a plain number.

    Raises:
        QuantityError: it is none of these.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise QuantityError(f"{text!r} is not a size", hint="write it like 500m or 10g")
    return int(float(found[1]) * _SIZE_FACTORS[found[2].lower()])


def format_moment(unix_ns: int, *, of_ns: float | None = None) -> str:
    """Date and local time: `2026-01-31 14:05:09`; with milliseconds if it belongs to something under 10 s."""
    return time.strftime("%Y-%m-%d ", time.localtime(unix_ns // SECOND_NS)) + format_time_of_day(unix_ns, of_ns=of_ns)


def format_time_of_day(unix_ns: int, *, of_ns: float | None = None) -> str:
    """Local time: `14:05:09`, `14:05:09.042`. of_ns: length of what the time belongs to."""
    second, rest_ns = divmod(int(unix_ns), SECOND_NS)
    shown = time.strftime("%H:%M:%S", time.localtime(second))
    return f"{shown}.{rest_ns // 1_000_000:03}" if of_ns is not None and of_ns < _TO_THE_MS_NS else shown


def format_ns(duration_ns: float) -> str:
    """A duration with three digits: `7.00 µs`, `48.3 ms`, `1.25 s`."""
    for step, unit in _NS_STEPS:
        if abs(duration_ns) >= step:
            return f"{_three_digits(duration_ns / step)} {unit}"
    return f"{duration_ns:.0f} ns"


def format_bytes(size_bytes: float) -> str:
    """A size with three digits: `512 B`, `1.25 GiB`."""
    for step, unit in _BYTE_STEPS:
        if abs(size_bytes) >= step:
            return f"{_three_digits(size_bytes / step)} {unit}"
    return f"{size_bytes:.0f} B"


def format_percent(share: float) -> str:
    """A ratio as a percentage: `0.3%`, `12%`."""
    percent = 100 * share
    return f"{percent:.1f}%" if abs(percent) < 10 else f"{percent:.0f}%"


def format_count(count: float) -> str:
    """A count with separators: `1,234`."""
    return f"{count:,.0f}"


def format_number(value: float, digits: int = 3) -> str:
    """A number with `digits` significant digits, large ones in full: `0.25`, `12.5`, `17,300`."""
    rounded = float(f"{value:.{digits}g}")
    return format_count(value) if abs(rounded) >= 10**digits else f"{rounded:.{digits}g}"


def format_counter(name: str, value: int) -> str:
    """The value of a counter, as a duration if its name ends in `_ns`."""
    return format_ns(value) if name.endswith("_ns") else format_count(value)


def format_counted(count: int, noun: str) -> str:
    """A count of things: `1 process`, `1,234 calls`."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{format_count(count)} {noun}{ending}"


def format_cpu_list(cpus: Set[int]) -> str:
    """The kernel's short form of a set of CPUs: `0-3,8`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def parse_cpu_list(text: str) -> frozenset[int]:
    """The CPUs of such a list."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.strip():
            found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:.2f}" if size < 10 else f"{value:.1f}" if size < 100 else f"{value:.0f}"
