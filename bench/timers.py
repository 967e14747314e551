"""How late the timers of this machine are: a simulated device's interrupt is one, and only a late one can show it.

A virtual machine gets its timer's interrupt when its host lets it run, at times milliseconds late for seconds on end;
nothing inside the machine can know that the device was ready. Run as a program, this sleeps and writes by how much each
of its timers was late, waiting for a CPU apart, until its standard input ends.
"""

from __future__ import annotations

import ctypes
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_PERIOD_NS = 10_000_000
_PAUSE_NS = 1_000_000
_PR_SET_TIMERSLACK = 29  # prctl.h
_SAMPLE = np.dtype([("at_ns", "<i8"), ("late_ns", "<i8")])


@contextmanager
def watched_timers(log: Path, *, period_ns: int = _PERIOD_NS) -> Iterator[None]:
    """Measures beside what is in the block."""
    with (
        log.open("wb") as out,
        subprocess.Popen([sys.executable, __file__, str(period_ns)], stdin=subprocess.PIPE, stdout=out) as program,
    ):
        try:
            yield
        finally:
            program.communicate()


def mean_lateness_ns(log: Path, start_ns: int, end_ns: int) -> int:
    """Of the timers that ended in between (CLOCK_MONOTONIC); there must have been some.

    One that seems to be early was not: its thread waited for a CPU before it began to sleep.
    """
    samples: Array = np.fromfile(log, _SAMPLE)
    inside = samples[(samples["at_ns"] > start_ns) & (samples["at_ns"] <= end_ns)]
    assert len(inside), "the watch of the timers did not run"
    return int(np.maximum(inside["late_ns"], 0).mean())


def longest_pauses_ns(log: Path, *, period_ns: int = _PERIOD_NS) -> int:
    """How long the machine may have been paused in all.

    A timer that is late tells the end of a pause, and that it began after the timer before.
    """
    late: Array = np.fromfile(log, _SAMPLE)["late_ns"]
    late = late[late > _PAUSE_NS]
    return int(late.sum()) + len(late) * period_ns


def _waited_for_a_cpu_ns() -> int:
    return int(Path("/proc/self/schedstat").read_text().split()[1])


def _watch(period_ns: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    ended = select.poll()
    ended.register(sys.stdin, select.POLLIN | select.POLLHUP)
    while not ended.poll(0):
        waited_ns = _waited_for_a_cpu_ns()
        due_ns = time.monotonic_ns() + period_ns
        time.sleep(period_ns / 1e9)
        at_ns = time.monotonic_ns()
        late_ns = at_ns - due_ns - (_waited_for_a_cpu_ns() - waited_ns)
        sys.stdout.buffer.write(np.array([(at_ns, late_ns)], _SAMPLE).tobytes())
        sys.stdout.flush()


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
