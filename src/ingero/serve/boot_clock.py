"""Recorded moments by the clock of the machine's boot, which nobody sets: what compares them with another machine's.

A recording goes on in the time it has where the wall clock is set back (`capture/clocks`), and the clock may have been
set since. The pairs of clocks that it holds say what each recorded moment was by CLOCK_MONOTONIC.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from ingero.discover import kernel_clock
from ingero.store.reader import Reader

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STEP_NS = 100_000_000  # as a recorder tells a step from what NTP slews
_REACH_NS = 60_000_000_000  # around the pairs of a session, which come every 10 s
_READINGS = 5  # the tightest of a few readings: one may be preempted between its two clocks


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """The present by both clocks, ns. suspended_ns: for how long the machine has slept since its start."""

    mono_ns: int
    unix_ns: int
    suspended_ns: int


def now(clock: Callable[[], int] = time.time_ns) -> Now:
    """Reads both clocks. clock: unix ns."""
    found = []
    for _ in range(_READINGS):
        before = kernel_clock.monotonic_ns()
        unix_ns = clock()
        after = kernel_clock.monotonic_ns()
        found.append((after - before, (before + after) // 2, unix_ns))
    _, mono_ns, unix_ns = min(found)
    return Now(mono_ns=mono_ns, unix_ns=unix_ns, suspended_ns=kernel_clock.suspended_ns())


class BootClock:
    """Of a recording, those sessions that this machine made since its last start."""

    def __init__(self, reader: Reader) -> None:
        self._of_node: dict[str, list[_Pairs]] = {}
        if reader.older_version or not reader.is_recorded("raw_clock_pairs"):
            return
        rows = reader.connection.execute(
            "SELECT node, session, mono_ns, unix_ns FROM raw_clock_pairs JOIN raw_sessions USING (session) "
            "WHERE boot_id = ? ORDER BY started_ns, session, mono_ns",
            (_boot_id(),),
        )
        for (node, _), pairs in groupby(rows, key=lambda row: row[:2]):
            self._of_node.setdefault(node, []).append(_Pairs((mono, unix) for _, _, mono, unix in pairs))

    def moment(self, node: str, unix_ns: int) -> tuple[int, int] | None:
        """A moment that was recorded on a node: CLOCK_MONOTONIC, and how far that may be off, ns; None: not known."""
        found = (pairs.moment(unix_ns) for pairs in self._of_node.get(node, ()))
        return min((one for one in found if one is not None), key=lambda one: one[1], default=None)


class _Pairs:
    """Of one session, with the offset that its timeline had."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        self._mono: list[int] = []
        self._offset: list[int] = []
        held_ns, last_unix_ns = 0, 0
        for mono_ns, unix_ns in pairs:
            if self._mono:
                step_ns = (unix_ns - last_unix_ns) - (mono_ns - self._mono[-1])
                if step_ns < -_STEP_NS:
                    held_ns -= step_ns
                elif step_ns > _STEP_NS:
                    held_ns -= min(held_ns, step_ns)
            last_unix_ns = unix_ns
            self._mono.append(mono_ns)
            self._offset.append(unix_ns - mono_ns + held_ns)
        self._recorded: Sequence[int] = [mono + offset for mono, offset in zip(self._mono, self._offset, strict=True)]

    def moment(self, unix_ns: int) -> tuple[int, int] | None:
        """Between two pairs the offset was that of the one, or on its way to the other: the bound is what lies between,
        and that of the time range before, which a recorder may still have gone by."""
        if not self._recorded[0] - _REACH_NS <= unix_ns <= self._recorded[-1] + _REACH_NS:
            return None
        at = max(bisect_right(self._recorded, unix_ns) - 1, 0)
        around = self._offset[max(at - 1, 0) : at + 2]
        mono_ns, bound_ns = unix_ns - self._offset[at], max(around) - min(around)
        return (mono_ns, bound_ns) if mono_ns >= 0 and bound_ns < _REACH_NS else None


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip() or "?"
    except OSError:
        return "?"  # equal to none
