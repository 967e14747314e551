"""The stack of a hung call counts only if the call is still open after it has been read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingero.capture.stacks import hung_calls
from ingero.capture.stacks.blocked_threads import InFlightCall, NotBlockedError
from ingero.capture.stacks.hung_calls import HUNG_NS, HungCalls
from ingero.capture.stacks.process_stacks import ProcessStacks
from ingero.capture.stacks.stack_frames import MergedStack

_DUMP = np.dtype(
    [(name, "<u8") for name in ("now_ns", "call_start_ns", "call_caller", "call_sp", "thread_pointer")]
    + [("pid", "<u4"), ("tid", "<u4")]
)
_BEGAN_NS = 1_000
_KERNELS = 5  # the hash of the stack that the kernel side took


class Watched:
    """One thread's call, looked at by a `HungCalls` whose reader works when the test lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work: list[Callable[[], None]] = []
        self.stored: list[Any] = []
        self.is_blocked = True
        self.read_ns = 0
        monkeypatch.setattr(hung_calls, "in_flight_call_stack", self._stack)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.read_ns)
        process = ProcessStacks.__new__(ProcessStacks)
        process.pid = 7
        self.calls = HungCalls(self.work.append, lambda _number: process, self.stored.append)

    def _stack(self, _call: InFlightCall, _process: ProcessStacks) -> MergedStack:
        if not self.is_blocked:
            raise NotBlockedError("it is running")
        return MergedStack(ips="[]", frames="[]", note="")

    def look(self, open_ns: int, *, began_ns: int = _BEGAN_NS) -> int:
        thread = np.zeros(1, _DUMP)
        thread["now_ns"], thread["call_start_ns"], thread["tid"] = began_ns + open_ns, began_ns, 9
        return self.calls.stack_of(3, thread[0])

    def returned(self, begin_ns: int, end_ns: int) -> int:
        record = np.zeros(1, [("start_ns", "<u8"), ("duration_ns", "<u8"), ("tid", "<u4")])
        record["start_ns"], record["duration_ns"], record["tid"] = begin_ns, end_ns - begin_ns, 9
        (number,) = self.calls.of_returned(record, [3], [_KERNELS])
        return number

    def read(self, at_ns: int) -> None:
        self.read_ns = at_ns
        while self.work:
            self.work.pop()()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_call_that_is_open_for_a_moment_is_not_read(watched: Watched) -> None:
    assert watched.look(HUNG_NS - 1) == 0
    assert watched.work == []


def test_a_stack_counts_from_the_next_look_on_that_finds_the_call_open(watched: Watched) -> None:
    assert watched.look(HUNG_NS) == 0
    watched.read(_BEGAN_NS + HUNG_NS + 5)
    assert watched.stored == []
    number = watched.look(HUNG_NS + 10)
    assert number
    assert len(watched.stored) == 1
    assert watched.look(HUNG_NS + 20) == number
    assert len(watched.stored) == 1


def test_a_stack_that_was_read_after_the_look_does_not_count_yet(watched: Watched) -> None:
    watched.look(HUNG_NS)
    watched.read(_BEGAN_NS + HUNG_NS + 50)
    assert watched.look(HUNG_NS + 10) == 0


def test_the_next_call_of_the_thread_does_not_get_the_stack_of_the_one_before(watched: Watched) -> None:
    watched.look(HUNG_NS)
    watched.read(_BEGAN_NS + HUNG_NS + 5)
    assert watched.look(HUNG_NS, began_ns=_BEGAN_NS + HUNG_NS) == 0
    assert watched.stored == []


def test_a_thread_that_runs_is_looked_at_again(watched: Watched) -> None:
    watched.is_blocked = False
    watched.look(HUNG_NS)
    watched.read(_BEGAN_NS + HUNG_NS + 1)
    watched.is_blocked = True
    assert watched.look(HUNG_NS + 10) == 0
    watched.read(_BEGAN_NS + HUNG_NS + 11)
    assert watched.look(HUNG_NS + 20)


def test_a_call_has_the_stack_that_was_read_while_it_was_open(watched: Watched) -> None:
    watched.look(HUNG_NS)
    watched.read(_BEGAN_NS + HUNG_NS + 5)
    number = watched.returned(_BEGAN_NS + 3, _BEGAN_NS + HUNG_NS + 6)
    assert number != _KERNELS
    assert len(watched.stored) == 1


def test_a_call_that_returned_before_the_read_keeps_the_stack_it_has(watched: Watched) -> None:
    watched.look(HUNG_NS)
    watched.read(_BEGAN_NS + HUNG_NS + 5)
    assert watched.returned(_BEGAN_NS, _BEGAN_NS + HUNG_NS + 4) == _KERNELS
    assert watched.stored == []


def test_a_call_that_began_after_the_read_keeps_the_stack_it_has(watched: Watched) -> None:
    watched.look(HUNG_NS)
    watched.read(_BEGAN_NS + HUNG_NS + 5)
    assert watched.look(HUNG_NS + 10)
    assert watched.returned(_BEGAN_NS + HUNG_NS + 6, _BEGAN_NS + 3 * HUNG_NS) == _KERNELS
