"""A backward pass that launches from a thread of its own: its time is the step's, not a wait for somebody."""

from __future__ import annotations

import numpy as np
import pytest

from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.steps.launching_threads import IDLE_FIELDS, LaunchingThreads, launching_threads
from ingero.events import STATES
from ingero.store.arrays.arrays import SYNC_INTERVAL_DTYPE

MS = 1_000_000
MAIN, AUTOGRAD, WORKER = 10, 11, 20


def piece(tid: int, state: str, begin_ms: int, end_ms: int, depth: int = 1, waker_kind: str = "none") -> PathSegment:
    return PathSegment(
        pid=10 if tid != WORKER else 20,
        tid=tid,
        process=1,
        comm=tid,
        state=state,
        begin_ns=begin_ms * MS,
        end_ns=end_ms * MS,
        waker_kind=waker_kind,
        depth=depth,
    )


PATH = [
    piece(AUTOGRAD, "run", 30, 50),
    piece(AUTOGRAD, "runq", 26, 30),
    piece(WORKER, "run", 20, 26, depth=2),
    piece(AUTOGRAD, "sleep", 15, 20, waker_kind="timer"),
]


def sync_intervals(sleep_ms: int) -> np.ndarray:
    found = np.zeros(1, SYNC_INTERVAL_DTYPE)
    found["prev_sync_tid"] = found["first_launch_tid"] = found["sync_tid"] = MAIN
    found["first_launch_ns"], found["sync_start_ns"], found["idle_ns"] = 100 * MS, 100 * MS, 100 * MS
    found["idle_state_ns"][0, STATES.index("sleep")] = sleep_ms * MS
    found["idle_state_ns"][0, STATES.index("run")] = (100 - sleep_ms) * MS
    return found


def path(tid: int, begin_ns: int, end_ns: int, *, outside_gpu_calls: bool) -> list[PathSegment]:
    assert not outside_gpu_calls
    return PATH if (tid, begin_ns, end_ns) == (MAIN, 0, 100 * MS) else []


def clocks_ms(found: np.ndarray) -> dict[str, int]:
    clocks = found["idle_state_ns"][0] // MS
    return {name: int(ns) for name, ns in zip(STATES, clocks, strict=True) if ns}


def test_what_the_other_launching_thread_did_is_what_the_step_did() -> None:
    found = LaunchingThreads({MAIN, AUTOGRAD}, path).merge_thread_states(sync_intervals(40))
    assert clocks_ms(found) == {"run": 60 + 20, "runq": 4, "sleep": 40 - 24}


def test_a_thread_of_autograds_is_enough_where_the_launches_of_the_other_were_not_traced() -> None:
    launching = LaunchingThreads({AUTOGRAD}, path)
    assert clocks_ms(launching.merge_thread_states(sync_intervals(40))) == {"run": 60 + 20, "runq": 4, "sleep": 40 - 24}
    assert dict(launching.spans(sync_intervals(40))) == {AUTOGRAD: [(30 * MS, 50 * MS)]}


def test_no_more_than_the_sleep_is_given_away() -> None:
    found = LaunchingThreads({MAIN, AUTOGRAD}, path).merge_thread_states(sync_intervals(12))
    assert clocks_ms(found) == {"run": 88 + 10, "runq": 2}


def test_the_sync_intervals_that_were_read_are_not_changed() -> None:
    read = sync_intervals(40)
    LaunchingThreads({MAIN, AUTOGRAD}, path).merge_thread_states(read)
    assert clocks_ms(read) == {"run": 60, "sleep": 40}


@pytest.mark.parametrize("threads", [{MAIN}, set()])
def test_one_thread_alone_keeps_its_clocks(threads: set[int]) -> None:
    assert clocks_ms(LaunchingThreads(threads, path).merge_thread_states(sync_intervals(40))) == {
        "run": 60,
        "sleep": 40,
    }


def test_only_pieces_of_launching_threads_are_the_steps_own() -> None:
    launching = LaunchingThreads({MAIN, AUTOGRAD}, path)
    assert [launching.has(one) for one in PATH] == [True, True, False, False]
    assert dict(launching.spans(sync_intervals(40))) == {AUTOGRAD: [(30 * MS, 50 * MS)]}
    assert launching.path(sync_intervals(40)[0], IDLE_FIELDS) == PATH


def test_autograds_threads_feed_whether_their_launches_were_traced_or_not() -> None:
    names = [(MAIN, "python3"), (AUTOGRAD, "pt_autograd_0"), (WORKER, "pt_data_worker"), (30, "cuda-EvtHandlr")]
    assert launching_threads({MAIN}, names) == {MAIN, AUTOGRAD}
