"""Answers of a server are kept while the file stays the same, and made by one thread when it does not."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ingero.serve.recording_source import RecordingSource, parse_since_ns
from ingero.units import QuantityError

SECOND_NS = 1_000_000_000


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = 10**18

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(tmp_path: Path, clock: Clock) -> RecordingSource:
    (tmp_path / "some.db").write_text("x")
    return RecordingSource(tmp_path / "some.db", may_lag=True, clock=clock, monotonic=clock)


def counter() -> Callable[[], int]:
    made = iter(range(100))
    return lambda: next(made)


def grow(source: RecordingSource) -> None:
    with source.path.open("a") as file:
        file.write("more")


def test_an_answer_is_kept_while_the_file_stays_the_same(source: RecordingSource, clock: Clock) -> None:
    make = counter()
    assert source.kept(("a",), make) == 0
    clock.now_ns += 3600 * SECOND_NS
    assert source.kept(("a",), make) == 0
    assert source.kept(("b",), make) == 1


def test_an_answer_is_made_anew_long_after_the_file_has_changed(source: RecordingSource, clock: Clock) -> None:
    make = counter()
    source.kept(("a",), make)
    grow(source)
    assert source.kept(("a",), make) == 0
    clock.now_ns += 3 * SECOND_NS
    assert source.kept(("a",), make) == 1


def test_an_answer_that_may_not_lag_is_made_anew_as_soon_as_the_file_has_changed(source: RecordingSource) -> None:
    exact = RecordingSource(source.path, clock=source.clock, monotonic=source.clock)
    make = counter()
    exact.kept(("a",), make)
    grow(source)
    assert exact.kept(("a",), make) == 1


def test_an_answer_that_took_long_is_kept_longer(source: RecordingSource, clock: Clock) -> None:
    made = counter()

    def slow() -> int:
        clock.now_ns += 5 * SECOND_NS
        return made()

    source.kept(("a",), slow)
    grow(source)
    clock.now_ns += 49 * SECOND_NS
    assert source.kept(("a",), slow) == 0
    clock.now_ns += 60 * SECOND_NS
    assert source.kept(("a",), slow) == 1


def test_another_file_of_the_same_name_has_other_answers(source: RecordingSource) -> None:
    make = counter()
    source.kept(("a",), make)
    other = source.path.with_name("other.db")
    other.write_text("y")
    other.replace(source.path)
    assert source.kept(("a",), make) == 1


def test_an_answer_that_was_begun_is_not_made_again(source: RecordingSource) -> None:
    made = threading.Semaphore(0)
    for _ in range(2):
        source.begin(("stacks",), made.release)
    source.kept(("stacks",), made.release)
    assert made.acquire(blocking=False)
    assert not made.acquire(blocking=False)


def test_an_error_is_not_kept(source: RecordingSource) -> None:
    def fail() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        source.kept(("a",), fail)
    assert source.kept(("a",), counter()) == 0


def test_many_who_ask_at_once_get_one_answer(source: RecordingSource) -> None:
    may_answer = threading.Event()
    make = counter()
    found: list[int] = []

    def wait() -> int:
        may_answer.wait()
        return make()

    threads = [threading.Thread(target=lambda: found.append(source.kept(("a",), wait))) for _ in range(8)]
    for thread in threads:
        thread.start()
    may_answer.set()
    for thread in threads:
        thread.join()
    assert found == [0] * 8


def test_silence_of_a_recorder_is_a_change(source: RecordingSource, clock: Clock) -> None:
    os.utime(source.path, ns=(clock.now_ns, clock.now_ns))
    before = source.stamp()
    clock.now_ns += 10 * SECOND_NS
    assert source.stamp() != before


@pytest.mark.parametrize(("text", "ns"), [("", None), ("90s", 90 * SECOND_NS), ("1h30m", 5400 * SECOND_NS)])
def test_a_duration_is_read(text: str, ns: int | None) -> None:
    assert parse_since_ns(text) == ns


@pytest.mark.parametrize("text", ["soon", "0s", "99999999d", "1e9", "9" * 32, "5m\x00", "..", "1" * 40])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_since_ns(text)
