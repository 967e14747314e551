"""Reads the clocks of the initial time namespace, as BPF programs do, whatever this process's namespace.

`bpf_ktime_get_ns`, samples of perf and `task_struct.start_boottime` know of no time namespace. What a process reads
as CLOCK_MONOTONIC and CLOCK_BOOTTIME, and in /proc/PID/stat, is shifted by the offsets of its own.

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
    """The kernel's clock cannot be determined in this time namespace."""


class TimeNamespaceOffsets(NamedTuple):
    """What a time namespace adds to the kernel's clocks, ns."""

    monotonic_ns: int
    boottime_ns: int


def monotonic_ns() -> int:
    """CLOCK_MONOTONIC of the initial time namespace, ns.

    Raises:
        TimeNamespaceError: it cannot be known.
    """
    return time.monotonic_ns() - own_offsets().monotonic_ns


def boottime_ns() -> int:
    """CLOCK_BOOTTIME of the initial time namespace, ns.

    Raises:
        TimeNamespaceError: it cannot be known.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - own_offsets().boottime_ns


def suspended_ns() -> int:
    """How long the host has been suspended since boot, ns.

    Raises:
        TimeNamespaceError: it cannot be known.
    """
    found = []
    for _ in range(_READINGS):  # between the two readings of one, this thread may lose its CPU
        mono_ns = monotonic_ns()
        found.append(boottime_ns() - mono_ns)
    return max(0, min(found))


def start_ticks(shown: int) -> int:
    """The start of a process in clock ticks since boot, from what /proc/PID/stat shows here.

    Raises:
        TimeNamespaceError: it cannot be known.
    """
    return shown - own_offsets().boottime_ns // _NS_PER_TICK


@cache
def own_offsets() -> TimeNamespaceOffsets:
    """The offsets of this process, which never changes its time namespace.

    Raises:
        TimeNamespaceError: they cannot be known.
    """
    return read_offsets(_SELF)


def read_offsets(process: Path) -> TimeNamespaceOffsets:
    """The offsets of the process with this /proc folder; none on a kernel without time namespaces.

    Raises:
        TimeNamespaceError: it is in another one than its children will be, whose offsets are all that /proc shows; or
            start times of processes, by which they are identified, cannot be determined to a clock tick.
    """
    try:
        own = str((process / "ns" / "time").readlink())
        of_children = str((process / "ns" / "time_for_children").readlink())
    except FileNotFoundError:
        return TimeNamespaceOffsets(0, 0)
    if own == _INITIAL:
        return TimeNamespaceOffsets(0, 0)
    if own != of_children:
        raise TimeNamespaceError(
            "this process is in another time namespace than its children will be: the kernel's time is not known",
            hint="start ingero from a shell inside the new time namespace (unshare --time --fork bash)",
        )
    found = _parse((process / "timens_offsets").read_text())
    if found.boottime_ns < 0 or found.boottime_ns % _NS_PER_TICK:  # below 0, /proc shows starts modulo 2^64 ns
        raise TimeNamespaceError(
            f"this time namespace shifts CLOCK_BOOTTIME by {found.boottime_ns:,} ns: /proc does not show to the clock "
            "tick when processes started",
            hint="run ingero outside the time namespace, or in one that adds whole seconds",
        )
    return found


def _parse(text: str) -> TimeNamespaceOffsets:
    """Parses one line per clock: name, seconds, and nanoseconds to add."""
    rows = (line.split() for line in text.splitlines())
    found = {name: int(seconds) * SECOND_NS + int(rest) for name, seconds, rest in rows}
    return TimeNamespaceOffsets(found["monotonic"], found["boottime"])
