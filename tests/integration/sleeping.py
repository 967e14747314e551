"""A program whose threads sleep at lines of their own and note each sleep: thread, line, begin and end."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

Noted = tuple[int, int, int, int]
"""Thread, line, begin and end in Unix nanoseconds."""


def noted(sleeps: list[Noted], sleep: Callable[[], object], line: int) -> None:
    begin = time.time_ns()
    sleep()  # the outer line
    sleeps.append((threading.get_native_id(), line, begin, time.time_ns()))


def line_here() -> int:
    return sys._getframe(1).f_lineno


def launching(until: float, lock: threading.Lock, sleeps: list[Noted]) -> None:
    while time.monotonic() < until:
        noted(sleeps, lambda: time.sleep(0.004), line_here())
        noted(sleeps, lambda: time.sleep(0.03), line_here())
        noted(sleeps, lock.acquire, line_here())
        lock.release()


def holding(until: float, lock: threading.Lock, sleeps: list[Noted]) -> None:
    while time.monotonic() < until:
        with lock:
            noted(sleeps, lambda: time.sleep(0.005), line_here())
        noted(sleeps, lambda: time.sleep(0.002), line_here())


def flooding(until: float, sleeps: list[Noted]) -> None:
    """Far more sleeps than are looked at, and of two lines that take turns."""
    while time.monotonic() < until:
        noted(sleeps, lambda: time.sleep(0.0002), line_here())
        noted(sleeps, lambda: time.sleep(0.0005), line_here())


def working(until: float, sleeps: list[Noted]) -> None:
    while time.monotonic() < until:
        noted(sleeps, lambda: time.sleep(0.012), line_here())


def main() -> None:
    path, seconds = Path(sys.argv[1]), float(sys.argv[2])
    sys.stdin.readline()  # traced from here on
    until, lock = time.monotonic() + seconds, threading.Lock()
    sleeps: list[Noted] = []
    worker = os.fork()
    if not worker:
        working(until, sleeps)
    else:
        threads = [
            threading.Thread(target=holding, args=(until, lock, sleeps)),
            threading.Thread(target=flooding, args=(until, sleeps)),
        ]
        for one in threads:
            one.start()
        launching(until, lock, sleeps)
        for one in threads:
            one.join()
        os.waitpid(worker, 0)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(one) + "\n" for one in sleeps)
    os._exit(0)


if __name__ == "__main__":
    main()
