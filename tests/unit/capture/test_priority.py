"""The CPU priority of the agent's threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from ingero.capture.loop.priority import NICE, preferred


def _nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def _in_a_thread(work: Callable[[], None]) -> None:
    """Run it in a thread of its own: what it changes there ends with it."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have a higher priority")
def test_threads_that_are_started_meanwhile_are_preferred_too() -> None:
    seen: list[int] = []

    def work() -> None:
        with preferred():
            seen.append(_nice())
            _in_a_thread(lambda: seen.append(_nice()))
        seen.append(_nice())

    _in_a_thread(work)
    assert seen == [NICE, NICE, 0]


def test_a_priority_that_somebody_chose_stays() -> None:
    seen: list[int] = []

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 5)
        with preferred():
            seen.append(_nice())
        seen.append(_nice())

    _in_a_thread(work)
    assert seen == [5, 5]


def test_who_may_not_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    with preferred():
        assert _nice() == 0
