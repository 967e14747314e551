"""A loop that stands still is told while it stands, with its place, and counted when it goes on."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from ingero.capture.loop.watchdog import STOOD_STILL, Watchdog

LIMIT_S = 0.05


def stand_still(until: threading.Event) -> None:
    until.wait(10)


def test_a_loop_that_stands_still_is_told_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Event()

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has been stuck" in record.getMessage():
                told.set()

    handler = Told()
    logging.getLogger("ingero.capture.loop.watchdog").addHandler(handler)
    try:
        with caplog.at_level(logging.WARNING), Watchdog(limit_s=LIMIT_S, poll_period_s=LIMIT_S / 5) as watchdog:
            watchdog.beat()
            stand_still(told)
            watchdog.beat()
    finally:
        logging.getLogger("ingero.capture.loop.watchdog").removeHandler(handler)
    assert told.is_set()
    texts = [one.getMessage() for one in caplog.records]
    assert "capture.test_watchdog.stand_still" in texts[0]
    assert "continued after" in texts[-1]
    assert watchdog.drops()[STOOD_STILL] > LIMIT_S * 1e9
    assert watchdog.drops() == {STOOD_STILL: 0}


def test_a_loop_that_goes_on_is_left_in_peace(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Watchdog(limit_s=60, poll_period_s=LIMIT_S / 5) as watchdog:
        for _ in range(10):
            watchdog.beat()
            time.sleep(LIMIT_S / 10)
    assert not caplog.records
    assert watchdog.drops() == {STOOD_STILL: 0}


def test_a_loop_that_is_over_is_not_watched(caplog: pytest.LogCaptureFixture) -> None:
    """Detaching probes takes as long as it takes."""
    with caplog.at_level(logging.WARNING), Watchdog(limit_s=0.02, poll_period_s=0.001) as watchdog:
        watchdog.beat()
        watchdog.rest()
        time.sleep(LIMIT_S)
        watchdog.beat()
    assert not caplog.records
    assert watchdog.drops() == {STOOD_STILL: 0}


def test_before_the_first_beat_nothing_is_watched(caplog: pytest.LogCaptureFixture) -> None:
    """Attaching probes takes as long as it takes."""
    with caplog.at_level(logging.WARNING), Watchdog(limit_s=0.0, poll_period_s=0.001):
        time.sleep(LIMIT_S)
    assert not caplog.records
