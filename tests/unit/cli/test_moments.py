"""Moments on the command line: with a day, without one, and as numbers."""

from __future__ import annotations

from datetime import datetime

import pytest

from ingero.cli.moments import TimeOptionError, parse_time_ns
from ingero.store.records import Window


def local_ns(text: str) -> int:
    """Unix ns of local time."""
    return int(datetime.fromisoformat(text).timestamp() * 1e6) * 1000


def recorded(begin: str, end: str) -> Window:
    return Window(begin_ns=local_ns(begin), end_ns=local_ns(end))


AFTERNOON = recorded("2026-11-21 13:50:00", "2026-11-21 14:04:30")
MIDNIGHT = recorded("2026-11-20 23:50:00", "2026-11-21 00:10:00")
LONG = recorded("2026-11-20 02:00:00", "2026-11-21 22:00:00")


@pytest.mark.parametrize(
    ("text", "window", "moment"),
    [
        ("14:00", AFTERNOON, "2026-11-21 14:00:00"),
        ("14:00:05.25", AFTERNOON, "2026-11-21 14:00:05.250"),
        ("14:05", AFTERNOON, "2026-11-21 14:05:00"),
        ("13:00", AFTERNOON, "2026-11-21 13:00:00"),
        ("23:55", MIDNIGHT, "2026-11-20 23:55:00"),
        ("0:05", MIDNIGHT, "2026-11-21 00:05:00"),
        ("03:00", LONG, "2026-11-21 03:00:00"),
        ("23:00", LONG, "2026-11-20 23:00:00"),
    ],
)
def test_a_time_without_a_day_is_the_last_one_recorded_or_the_nearest(text: str, window: Window, moment: str) -> None:
    assert parse_time_ns(text, window) == local_ns(moment)


@pytest.mark.parametrize(
    ("text", "unix_ns"),
    [
        ("1795268405", 1_795_268_405_000_000_000),
        ("1795268405.25", 1_795_268_405_250_000_000),
        ("1795268405250000001", 1_795_268_405_250_000_001),
        ("2026-11-21T13:40:05Z", 1_795_268_405_000_000_000),
        ("2026-11-21 14:40:05.5+01:00", 1_795_268_405_500_000_000),
    ],
)
def test_numbers_and_times_with_a_zone_are_exact(text: str, unix_ns: int) -> None:
    assert parse_time_ns(text, AFTERNOON) == unix_ns


def test_a_day_without_a_zone_is_local_time() -> None:
    assert parse_time_ns("2026-11-21 13:40:05", AFTERNOON) == local_ns("2026-11-21 13:40:05")


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "12:60", "12:00:60", "14", "-5", "1e9", "12345678901234"])
def test_what_is_no_moment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(TimeOptionError) as refused:
        parse_time_ns(text, AFTERNOON)
    assert "14:05" in refused.value.hint
