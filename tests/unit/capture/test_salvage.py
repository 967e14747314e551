"""One record that raises costs itself: every other one is handed over once, and the loss is counted and said."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.capture.loop.salvage import PARTS, RECORDS, Salvage

BATCH = np.arange(8192)


class Consumer:
    """Takes numbers, and appends them last."""

    def __init__(self, bad: set[int]) -> None:
        self.bad, self.taken = bad, list[int]()

    def __call__(self, batch: np.ndarray) -> None:
        if self.bad & set(batch.tolist()):
            raise ValueError("a record of nobody's")
        self.taken += batch.tolist()


@given(st.sets(st.integers(0, 8191), max_size=8))
def test_all_but_the_bad_records_are_taken_once_and_in_their_order(bad: set[int]) -> None:
    consumer, salvage = Consumer(bad), Salvage()
    salvage.records("calls", consumer, BATCH)
    assert consumer.taken == sorted(set(BATCH.tolist()) - bad)
    assert salvage.drops() == ({RECORDS: len(bad)} if bad else {})


def test_a_batch_of_bad_records_is_given_up_in_bounded_time_and_counted_whole() -> None:
    calls = 0

    def consume(_batch: np.ndarray) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("no record is any good")

    salvage = Salvage()
    salvage.records("calls", consume, BATCH)
    assert salvage.drops() == {RECORDS: len(BATCH)}
    assert calls < 300


def test_each_kind_is_said_once_with_what_raised(caplog: pytest.LogCaptureFixture) -> None:
    salvage = Salvage()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            salvage.records("calls", Consumer({7}), BATCH)
            salvage.part("wakers", lambda: 1 // 0)
    texts = [one.getMessage() for one in caplog.records]
    assert len(texts) == 2
    assert "calls" in texts[0] and "a record of nobody's" in texts[0]  # noqa: PT018
    assert "wakers" in texts[1] and "ZeroDivisionError" in texts[1]  # noqa: PT018


def test_a_part_that_raises_is_counted_and_the_rest_goes_on() -> None:
    salvage, done = Salvage(), list[str]()
    salvage.part("wakers", lambda: 1 // 0)
    salvage.part("steps", lambda: done.append("steps"))
    assert done == ["steps"]
    assert salvage.drops() == {PARTS: 1}
    assert salvage.drops() == {}
