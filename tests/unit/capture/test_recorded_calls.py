"""Recorded calls are shown with their stacks as soon as these are known, and never wait long for them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from ingero.capture.loop.clocks import WallClock
from ingero.capture.records.recorded_calls import STACK_PATIENCE_NS, RecordedCalls
from ingero.capture.stacks.stack_frames import MergedStack
from ingero.events import STATES

_RECORD = np.dtype(
    [(name, "<i8") for name in ("start_ns", "duration_ns", "pid", "tid", "op", "culprit_pid", "culprit_ns", "ret")]
    + [("waker_kind", "u1"), ("waker_tid", "<u4"), ("comm", "S16"), ("state_ns", "<i8", (len(STATES),))]
)
_STACK = MergedStack(ips="[]", frames='[{"py_file": "train.py", "py_func": "step", "py_line": 7}]', note="cut")


class Shown:
    """Recorded calls, with a clock and stacks that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int = 10) -> None:
        self.now_ns = 0
        self.stacks: dict[int, MergedStack] = {}
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.now_ns)
        clock = WallClock()
        clock.add_pair(0, 0)
        self.calls = RecordedCalls(limit, clock, self.stacks.get)

    def add(self, *stack_hashes: int) -> None:
        batch: np.ndarray[Any, Any] = np.zeros(len(stack_hashes), _RECORD)
        self.calls.add(batch, stack_hashes, lambda _pid: "", lambda _tid: "")

    def take(self, **options: bool) -> list[tuple[Any, str]]:
        return [(call.stack, call.stack_note) for call in self.calls.take(**options)[0]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    return Shown(monkeypatch)


def test_a_call_waits_until_its_stack_is_known(shown: Shown) -> None:
    shown.add(5)
    assert shown.take() == []
    shown.stacks[5] = _STACK
    assert shown.take() == [([{"py_file": "train.py", "py_func": "step", "py_line": 7}], "cut")]
    assert shown.take() == []


def test_a_call_whose_stack_does_not_come_is_shown_without_it_after_a_second(shown: Shown) -> None:
    shown.add(5)
    shown.now_ns += STACK_PATIENCE_NS - 1
    assert shown.take() == []
    shown.now_ns += 1
    assert shown.take() == [(None, "its stack is not known yet")]


def test_a_call_without_a_stack_does_not_wait_for_one(shown: Shown) -> None:
    shown.add(0)
    assert shown.take() == [(None, "no stack was taken")]


def test_the_end_of_a_recording_waits_for_no_stack(shown: Shown) -> None:
    shown.add(5)
    assert shown.take(is_last=True) == [(None, "its stack is not known yet")]


def test_no_more_calls_are_kept_than_may_be_shown_however_long_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, limit=3)
    shown.add(5, 6)
    shown.add(7, 8)
    assert shown.calls.take() == ([], 1)
    shown.add(9)
    assert shown.calls.take() == ([], 1)
    assert len(shown.take(is_last=True)) == 3
