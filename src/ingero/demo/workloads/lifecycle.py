"""Lets a workload announce that it runs, wait until it is traced, and end on a signal."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path


class Stopped(BaseException):
    """SIGTERM or Ctrl-C arrived; not an Exception, so that nothing on the way swallows it."""


def announce(word: str, *details: object) -> None:
    """Print `word PID details...` on stderr, where a caller may wait for it."""
    print(word, os.getpid(), *details, file=sys.stderr, flush=True)


def wait_for(gate: Path | None) -> None:
    """Return when the file exists, so that a tracer sees the first call of all; at once without a gate."""
    while gate is not None and not gate.exists():
        time.sleep(0.005)


@contextlib.contextmanager
def until_stopped() -> Iterator[None]:
    """Turn SIGTERM and SIGINT into leaving the with-block; only in the main thread."""

    def stop(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # cleaning up is not interrupted a second time
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise Stopped

    before = [(number, signal.signal(number, stop)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        yield
    except Stopped:
        pass
    finally:
        for number, handler in before:
            signal.signal(number, handler)
