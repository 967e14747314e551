"""The clocks that the kernel's programs read: those of the initial time namespace, whichever one this process is in.

`bpf_ktime_get_ns`, samples of perf and `task_struct.start_boottime` know of no time namespace. What a process is told
of CLOCK_MONOTONIC and CLOCK_BOOTTIME, and reads in /proc/PID/stat, is shifted by the offsets of its own.

Source: time_namespaces(7); kernel/time/namespace.c; fs/proc/array.c, do_task_stat(), since Linux 5.11.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ingero.errors import IngeroError
from ingero.units import SECOND_NS

_SELF = Path("/proc/self")
_INITIAL = "time:[4026531834]"  # PROC_TIME_INIT_INO, include/linux/proc_ns.h
_READINGS = 5
_NS_PER_TICK = SECOND_NS // os.sysconf("SC_CLK_TCK")


class TimeNamespaceError(IngeroError):
    """What the kernel's clock is cannot be known in this time namespace."""


class Offsets(NamedTuple):
    """What a time namespace adds to the kernel's clocks, ns."""

    monotonic_ns: int
    boottime_ns: int


def monotonic_ns() -> int:
    """CLOCK_MONOTONIC as the kernel has it.

    Raises:
        TimeNamespaceError: it cannot be known.
    """
    return time.monotonic_ns() - own_offsets().monotonic_ns


def boottime_ns() -> int:
    """CLOCK_BOOTTIME as the kernel has it.

    Raises:
        TimeNamespaceError: it cannot be known.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - own_offsets().boottime_ns


def suspended_ns() -> int:
    """For how long the host has been suspended since its start.

    Raises:
        TimeNamespaceError: it cannot be known.
    """
    found = []
    for _ in range(_READINGS):  # between the two readings of one, this thread may lose its CPU
        mono_ns = monotonic_ns()
        found.append(boottime_ns() - mono_ns)
    return max(0, min(found))


def start_ticks(shown: int) -> int:
    """When a process started, in clock ticks since boot, of what its /proc/PID/stat shows here.

    Raises:
        TimeNamespaceError: it cannot be known.
    """
    return shown - own_offsets().boottime_ns // _NS_PER_TICK


@cache
def own_offsets() -> Offsets:
    """Of this process. It stays in its time namespace for good.

    Raises:
        TimeNamespaceError: they cannot be known.
    """
    return read_offsets(_SELF)


def read_offsets(process: Path) -> Offsets:
    """Of the process with this folder of /proc; none where the kernel knows no time namespaces.

    Raises:
        TimeNamespaceError: it is in another one than its children will be, whose offsets are all that /proc shows; or
            start times of processes, by which they are identified, cannot be told to a clock tick.
    """
    try:
        own = str((process / "ns" / "time").readlink())
        of_children = str((process / "ns" / "time_for_children").readlink())
    except FileNotFoundError:
        return Offsets(0, 0)
    if own == _INITIAL:
        return Offsets(0, 0)
    if own != of_children:
        raise TimeNamespaceError(
            "this process is in another time namespace than its children will be: the kernel's time is not known",
            hint="start ingero from a shell inside the new time namespace (unshare --time --fork bash)",
        )
    found = _parsed((process / "timens_offsets").read_text())
    if found.boottime_ns < 0 or found.boottime_ns % _NS_PER_TICK:  # below 0, /proc shows starts modulo 2^64 ns
        raise TimeNamespaceError(
            f"this time namespace shifts CLOCK_BOOTTIME by {found.boottime_ns:,} ns: /proc does not show to the clock "
            "tick when processes started",
            hint="run ingero outside the time namespace, or in one that adds whole seconds",
        )
    return found


def _parsed(text: str) -> Offsets:
    """A line a clock: its name, seconds, and nanoseconds to be added to them."""
    rows = (line.split() for line in text.splitlines())
    found = {name: int(seconds) * SECOND_NS + int(rest) for name, seconds, rest in rows}
    return Offsets(found["monotonic"], found["boottime"])
