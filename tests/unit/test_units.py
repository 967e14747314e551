"""Quantities are read as people write them and written with three digits."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.units import (
    QuantityError,
    format_bytes,
    format_count,
    format_counted,
    format_counter,
    format_moment,
    format_ns,
    format_number,
    format_percent,
    format_time_of_day,
    parse_duration_s,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("2d", 172_800), ("250ms", 0.25), ("1.5ms", 0.0015), ("42", 42)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-5s", "ms", "1.2.3ms", "²ms"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_duration_s(text)
    assert repr(text) in str(caught.value)
    assert "90s" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("512", 512),
        ("500m", 500 << 20),
        ("10g", 10 << 30),
        ("64KiB", 64 << 10),
        ("64KB", 64 << 10),
        ("1.5k", 1536),
        (" 2 T ", 2 << 40),
    ],
)
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "big", "-1", "10x", "1e9", "10 g b", "1.g"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_size_bytes(text)
    assert "500m" in caught.value.hint


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (48_300_000, "48.3 ms"),
        (250_000_000, "250 ms"),
        (1_250_000_000, "1.25 s"),
        (-48_300_000, "-48.3 ms"),
        (3_600_000_000_000, "3600 s"),
    ],
)
def test_a_duration_is_written(duration_ns: float, text: str) -> None:
    assert format_ns(duration_ns) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (512, "512 B"), (1 << 10, "1.00 KiB"), (5 << 28, "1.25 GiB"), (3 << 41, "6.00 TiB")],
)
def test_a_size_is_written(size_bytes: float, text: str) -> None:
    assert format_bytes(size_bytes) == text


@given(st.integers(min_value=1 << 10, max_value=1 << 49))
def test_a_written_size_reads_back_within_its_three_digits(size_bytes: int) -> None:
    assert parse_size_bytes(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=0.0065)


@pytest.mark.parametrize(("share", "text"), [(0, "0.0%"), (0.003, "0.3%"), (0.123, "12%"), (1, "100%")])
def test_a_share_is_written_as_a_percentage(share: float, text: str) -> None:
    assert format_percent(share) == text


def test_a_count_is_written_with_separators() -> None:
    assert format_count(1_234_567) == "1,234,567"


@pytest.mark.parametrize(("name", "text"), [("wakeup_missed", "31,141,286"), ("repaired_ns", "31.1 ms")])
def test_a_counter_of_time_is_shown_as_one(name: str, text: str) -> None:
    assert format_counter(name, 31_141_286) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.254, "0.254"), (12.46, "12.5"), (999.4, "999"), (999.6, "1,000"), (17_300.0, "17,300"), (0.0, "0")],
)
def test_a_number_has_no_exponent(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "process", "1 process"), (2, "process", "2 processes"), (0, "call", "0 calls"), (1200, "call", "1,200 calls")],
)
def test_things_are_counted_in_their_number(count: int, noun: str, text: str) -> None:
    assert format_counted(count, noun) == text


@pytest.mark.parametrize(
    ("of_ns", "text"),
    [(None, "14:05:09"), (10 * 10**9, "14:05:09"), (9.9e9, "14:05:09.042"), (0, "14:05:09.042")],
)
def test_a_moment_of_something_short_has_milliseconds(of_ns: float | None, text: str) -> None:
    noon = datetime(2026, 1, 31, 14, 5, 9).astimezone()  # users read local time
    unix_ns = int(noon.timestamp()) * 10**9 + 42_999_999
    assert format_moment(unix_ns, of_ns=of_ns) == f"2026-01-31 {text}"
    assert format_time_of_day(unix_ns, of_ns=of_ns) == text
