"""The thread that resolves stacks and names: jobs in order, a look at what waits by the clock, losses counted."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter

import pytest

from ingero.capture.loop import worker
from ingero.capture.loop.worker import Worker

_FAILED = "stacks_not_resolved"


class Settled:
    """Until when everything was done, as the worker said; `enough` is set at the second time."""

    def __init__(self) -> None:
        self.until: list[float] = []
        self.enough = threading.Event()

    def __call__(self, until: float) -> None:
        self.until.append(until)
        if len(self.until) == 2:
            self.enough.set()


def test_jobs_are_done_in_their_order_and_all_of_them_before_it_ends() -> None:
    done: list[int] = []
    with Worker("test", lambda _until: None, failed=_FAILED) as works:
        for number in range(100):
            works.do(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == list(range(100))


def test_what_waits_is_settled_while_jobs_never_stop() -> None:
    settled = Settled()
    works = Worker("test", settled, failed=_FAILED)

    def go_on() -> None:
        if not settled.enough.is_set():
            time.sleep(0.001)  # stands for work; the queue is never empty when it is asked
            works.do(go_on)

    with works:
        works.do(go_on)
        assert settled.enough.wait(60)


def test_settling_is_told_a_time_until_which_all_jobs_are_done() -> None:
    first, handed_in = threading.Event(), threading.Event()
    settled = Settled()
    with Worker("test", settled, failed=_FAILED) as works:
        works.do(lambda: (first.set(), handed_in.wait(60), time.sleep(2 * worker._SETTLE_S), None)[-1])
        first.wait(60)
        later = time.monotonic()
        works.do(lambda: None)  # waits behind a job that takes long
        handed_in.set()
        settled.enough.wait(60)
    assert settled.until[0] <= later


def test_after_the_last_job_nothing_is_waited_for_any_more() -> None:
    settled = Settled()
    with Worker("test", settled, failed=_FAILED) as works:
        works.do(lambda: None)
    assert settled.until[-1] == math.inf


def test_a_job_that_does_not_end_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "_STUCK_S", 0.1)
    monkeypatch.setattr(worker, "_LAST_S", 1e6)
    answered, done = threading.Event(), threading.Event()
    with Worker("test", lambda _until: None, failed=_FAILED) as works:
        works.do(answered.wait)  # type: ignore[arg-type]  # stands for memory that does not answer
        works.do(done.set)
    assert "left behind" in caplog.text
    answered.set()
    assert done.wait(60)


def test_work_that_goes_on_is_waited_for_however_much_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_STUCK_S", 0.5)
    done: list[int] = []

    def settle(until: float) -> None:
        for number in range(20 if until == math.inf else 0):
            works.beat()
            time.sleep(0.05)  # stands for work: a second of it, of which no part takes long
            done.append(number)

    with Worker("test", settle, failed=_FAILED) as works:
        works.do(lambda: None)
    assert done == list(range(20))


def test_a_job_that_fails_is_counted_and_the_next_one_is_done() -> None:
    done: list[bool] = []

    def fail() -> None:
        raise ValueError("a damaged file")

    with Worker("test", lambda _until: None, failed=_FAILED) as works:
        works.do(fail)
        works.do(lambda: done.append(True))
    assert works.drops() == {_FAILED: 1}
    assert done == [True]


def test_settling_that_fails_is_counted_and_tried_again() -> None:
    tried = Settled()

    def fail(until: float) -> None:
        tried(until)
        raise OSError("the disk")

    with Worker("test", fail, failed=_FAILED) as works:
        assert tried.enough.wait(60)
    assert works.drops()[_FAILED] == len(tried.until)


def test_a_job_for_which_there_is_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_MAX_WAITING", 1)
    begun, may_end = threading.Event(), threading.Event()
    with Worker("test", lambda _until: None, failed=_FAILED) as works:
        works.do(lambda: (begun.set(), may_end.wait(60), None)[-1])
        begun.wait(60)
        works.do(lambda: None)
        works.do(lambda: None)
        may_end.set()
    assert works.drops() == {_FAILED: 1}


def test_a_job_that_is_needed_finds_room_where_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_MAX_WAITING", 1)
    begun, may_end = threading.Event(), threading.Event()
    done: list[str] = []
    with Worker("test", lambda _until: None, failed=_FAILED) as works:
        works.do(lambda: (begun.set(), may_end.wait(60), None)[-1])
        begun.wait(60)
        works.do(lambda: done.append("first"))
        works.do(lambda: done.append("lost"))
        works.do(lambda: done.append("needed"), is_needed=True)
        may_end.set()
    assert done == ["first", "needed"]
    assert works.drops() == {_FAILED: 1}


def test_drops_counted_by_many_threads_are_told_once_each() -> None:
    works = Worker("test", lambda _until: None, failed=_FAILED)
    told: Counter[str] = Counter()
    threads = [threading.Thread(target=lambda: [works.count("x") for _ in range(5000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        told.update(works.drops())
    told.update(works.drops())
    assert told["x"] == 20_000


def test_without_having_been_started_it_takes_no_jobs() -> None:
    works = Worker("test", lambda _until: None, failed=_FAILED)
    works.do(lambda: None)
    assert works._jobs.empty()
    assert works.drops() == {}
