"""How long a stream surely had work, by marks of progress: never more than is certain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingero.capture.steps.mark_rows import QUEUE_DEPTH
from ingero.diagnose.steps.progress_bounds import MIN_MARKS, queued_ns
from ingero.store.arrays.arrays import MARK_DTYPE

Array = np.ndarray[Any, np.dtype[Any]]

MS = 1_000_000
DONE = 100  # calls between two marks
GAP = 4 * MS


def marks(count: int = 10, *, ahead: int, blocked_ns: int = 2 * MS, is_full: bool = True) -> Array:
    """Marks 4 ms apart, with so many calls queued that are not done."""
    found = np.zeros(count, MARK_DTYPE)
    found["time_ns"] = 1 + np.arange(count) * GAP
    found["position"] = 5000 + np.arange(count) * DONE
    found["queued"] = found["position"] + ahead
    found["blocked_ns"], found["is_full"] = blocked_ns, is_full
    return found


def test_a_queue_that_stays_full_has_work_all_the_time() -> None:
    assert queued_ns(marks(ahead=QUEUE_DEPTH)) == 9 * GAP


def test_waits_for_an_older_position_show_that_the_stream_never_ran_dry() -> None:
    assert queued_ns(marks(ahead=150, is_full=False, blocked_ns=1)) == 9 * GAP


def test_where_more_is_done_than_was_queued_only_the_waits_are_certain() -> None:
    assert queued_ns(marks(ahead=50, is_full=False, blocked_ns=1 * MS)) == 9 * MS


@pytest.mark.parametrize("blocked_ns", [0, 1 * MS])
def test_launches_that_wait_for_little_of_the_time_prove_nothing(blocked_ns: int) -> None:
    """A program that never waits for its stream always seems to have a thousand calls outstanding."""
    assert queued_ns(marks(ahead=QUEUE_DEPTH, blocked_ns=blocked_ns)) == 0


def test_a_few_marks_prove_nothing() -> None:
    assert queued_ns(marks(MIN_MARKS - 1, ahead=QUEUE_DEPTH)) == 0


def test_calls_that_waited_on_two_threads_at_once_do_not_count_twice() -> None:
    assert queued_ns(marks(ahead=50, is_full=False, blocked_ns=3 * GAP)) == 9 * GAP


def test_while_the_host_was_away_a_queue_that_was_full_before_and_after_did_not_run_dry() -> None:
    found = marks(ahead=QUEUE_DEPTH)
    found["blocked_ns"][5] = 0
    assert queued_ns(found) == 9 * GAP
