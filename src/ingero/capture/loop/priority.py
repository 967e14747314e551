"""The agent's own CPU priority: it reports who takes the CPUs, and must run for that while they are taken."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NICE = -10  # nine tenths of a CPU beside one hog, for as long as the agent needs it (docs/adr/0069)


@contextmanager
def preferred() -> Iterator[None]:
    """Prefer the calling thread, and threads that it starts meanwhile, over programs of the usual priority.

    Not where the process may not, or was started with a priority that somebody chose. Source: setpriority(2), of a
    thread on Linux.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) != 0:
        yield
        return
    with suppress(OSError):  # without CAP_SYS_NICE, which nothing else needs
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
