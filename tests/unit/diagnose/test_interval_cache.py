"""Whole sync intervals are read once per look, and what no look asks for any more is let go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ingero.diagnose.evidence import interval_cache as kept_reads
from ingero.diagnose.evidence.interval_cache import Array, IntervalCache
from ingero.store.records import Window


def window(number: int) -> Window:
    return Window(begin_ns=number, end_ns=number + 1)


class Asked:
    """Reads, and counts how often."""

    def __init__(self) -> None:
        self.reads = IntervalCache()
        self.count = 0

    def get(self, number: int) -> Array:
        return self.reads.get(window(number), 1, self._reader(number))

    def _reader(self, number: int) -> Callable[[], Array]:
        def read() -> Array:
            self.count += 1
            return np.full(10, number, np.int64)

        return read


def test_the_same_window_is_read_once() -> None:
    asked = Asked()
    assert asked.get(1).tolist() == asked.get(1).tolist() == [1] * 10
    assert asked.count == 1


def test_what_the_last_look_did_not_ask_for_is_read_anew() -> None:
    asked = Asked()
    for number in (1, 2):
        asked.get(number)
    asked.reads.end_pass()
    asked.get(1)  # the next look asks for one of them
    asked.reads.end_pass()
    assert asked.count == 2
    asked.get(1)
    assert asked.count == 2, "still kept"
    asked.get(2)
    assert asked.count == 3, "was let go"


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reads, "_MAX_BYTES", 240)  # three of them
    asked = Asked()
    for number in (1, 2, 3, 4):
        asked.get(number)
    asked.get(4)
    assert asked.count == 4
    asked.get(1)
    assert asked.count == 5
    asked.reads.end_pass()  # also of what has made room already
    asked.get(1)
    assert asked.count == 5


def test_little_is_kept_from_one_look_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reads, "_MAX_BYTES_BETWEEN", 160)  # two of them
    asked = Asked()
    for number in (1, 2, 3):
        asked.get(number)
    asked.reads.end_pass()
    for number in (2, 3):
        asked.get(number)
    assert asked.count == 3
    asked.get(1)
    assert asked.count == 4
