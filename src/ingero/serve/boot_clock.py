"""Converts recorded times to CLOCK_MONOTONIC of the host's boot, which is never set: to compare times across hosts.

A recording goes on in the time it has where the wall clock is set back (`capture/clocks`), and the clock may have been
set since. The pairs of clocks that it holds say what each recorded moment was by CLOCK_MONOTONIC.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import msgspec

from ingero.discover import kernel_clock
from ingero.store.reader import Reader
from ingero.store.records import ClockPair

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STEP_NS = 100_000_000  # as a recorder tells a step from what NTP slews
_REACH_NS = 60_000_000_000  # around the pairs of a session, which come every 10 s
_READINGS = 5  # the tightest of a few readings: one may be preempted between its two clocks
_MAX_NS = 1 << 61  # the year 2043; sums of three are 64-bit integers
_READING_NS = 1_000  # what lies between the two clocks of the tightest, on a host that is idle


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """The present by both clocks, ns. suspended_ns: how long the host has been suspended since its boot."""

    mono_ns: int
    unix_ns: int
    suspended_ns: int


def now(clock: Callable[[], int] = time.time_ns) -> Now:
    """Read both clocks. clock: Unix ns."""
    found = []
    for _ in range(_READINGS):
        before = kernel_clock.monotonic_ns()
        unix_ns = clock()
        after = kernel_clock.monotonic_ns()
        found.append((after - before, (before + after) // 2, unix_ns))
    _, mono_ns, unix_ns = min(found)
    return Now(mono_ns=mono_ns, unix_ns=unix_ns, suspended_ns=kernel_clock.suspended_ns())


def pair(clock: Callable[[], int] = time.time_ns) -> ClockPair:
    """The present by both clocks, with the boot id. clock: Unix ns."""
    found = now(clock)
    return ClockPair(boot_id=_boot_id(), mono_ns=found.mono_ns, unix_ns=found.unix_ns, suspended_ns=found.suspended_ns)


class BootClock:
    """The sessions of a recording that this host made since its last boot."""

    def __init__(self, reader: Reader) -> None:
        self._of_node: dict[str, list[Timeline]] = {}
        boots, own = reader.boots(), _boot_id()
        node_of = {session.session: session.node for session in reader.sessions() if boots.get(session.session) == own}
        for session, timeline in timelines(reader, node_of):
            self._of_node.setdefault(node_of[session], []).append(timeline)

    def moment(self, node: str, unix_ns: int) -> tuple[int, int] | None:
        """A time recorded on a node as CLOCK_MONOTONIC, and its error bound, ns; None: not known."""
        found = (timeline.moment(unix_ns) for timeline in self._of_node.get(node, ()))
        return min((one for one in found if one is not None), key=lambda one: one[1], default=None)


def timelines(reader: Reader, sessions: Collection[int]) -> Iterator[tuple[int, Timeline]]:
    """The timeline of each of these sessions that has clock pairs."""
    for session, rows in groupby(reader.clock_pairs(), key=lambda row: row[0]):
        if session in sessions:
            timeline = Timeline(row[1:] for row in rows)
            if timeline.has_pairs:
                yield session, timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """The wall clock was set by by_ns, within bound_ns, between two of its times, Unix ns.

    may_be_suspended: the host may have been suspended instead, which CLOCK_MONOTONIC does not count.
    """

    after_ns: int
    until_ns: int
    by_ns: int
    bound_ns: int
    may_be_suspended: bool


class Timeline:
    """One session by CLOCK_MONOTONIC and by the wall clock. Without clock pairs nothing is known: see `has_pairs`.

    A recorder goes on in the time it has where the wall clock is set back (`capture/clocks`), until it is set forward.
    """

    def __init__(self, pairs: Iterable[tuple[int, int, int | None]]) -> None:
        self._mono, self._wall_offset = array("q"), array("q")
        self._suspended = array("q")  # below 0: not recorded
        self._offset, self._recorded = array("q"), array("q")  # that the recorder had, and its times at the pairs
        held_ns = 0
        for mono_ns, unix_ns, suspended_ns in pairs:
            if not (0 <= mono_ns < _MAX_NS and 0 <= unix_ns < _MAX_NS and held_ns < _MAX_NS):
                continue  # no clock says that
            if self._mono:
                step_ns = unix_ns - mono_ns - self._wall_offset[-1]
                if step_ns < -_STEP_NS:
                    held_ns -= step_ns
                elif step_ns > _STEP_NS:
                    held_ns -= min(held_ns, step_ns)
            self._mono.append(mono_ns)
            self._wall_offset.append(unix_ns - mono_ns)
            self._offset.append(unix_ns - mono_ns + held_ns)
            self._recorded.append(unix_ns + held_ns)
            known_ns = -1 if suspended_ns is None else suspended_ns
            self._suspended.append(known_ns if 0 <= known_ns < _MAX_NS else -1)

    def moment(self, unix_ns: int) -> tuple[int, int] | None:
        """A recorded time as CLOCK_MONOTONIC, and its error bound, ns; None: not known.

        Between two pairs the offset was that of the one, or on its way to the other: the bound is what lies between,
        and that of the time range before, which a recorder may still have gone by.
        """
        if not self._recorded[0] - _REACH_NS <= unix_ns <= self._recorded[-1] + _REACH_NS:
            return None
        at = max(bisect_right(self._recorded, unix_ns) - 1, 0)
        around = self._offset[max(at - 1, 0) : at + 2]
        mono_ns, bound_ns = unix_ns - self._offset[at], max(around) - min(around)
        return (mono_ns, bound_ns) if mono_ns >= 0 and bound_ns < _REACH_NS else None

    @property
    def has_pairs(self) -> bool:
        """Whether the session has clock pairs."""
        return bool(self._mono)

    @property
    def begin_ns(self) -> int:
        """CLOCK_MONOTONIC of the first pair."""
        return self._mono[0]

    @property
    def end_ns(self) -> int:
        """CLOCK_MONOTONIC of the last pair."""
        return self._mono[-1]

    @property
    def first_offset_ns(self) -> int:
        """The wall clock minus CLOCK_MONOTONIC at the first pair."""
        return self._wall_offset[0]

    @property
    def last_offset_ns(self) -> int:
        """The wall clock minus CLOCK_MONOTONIC at the last pair."""
        return self._wall_offset[-1]

    def end_mono_ns(self, wall_ns: int) -> int | None:
        """CLOCK_MONOTONIC at a wall clock time close to the last pair; None: the time is not close to it."""
        mono_ns = wall_ns - self._wall_offset[-1]
        return mono_ns if mono_ns >= 0 and abs(mono_ns - self._mono[-1]) <= _REACH_NS else None

    def offset_ns(self, mono_ns: int) -> int:
        """The wall clock minus CLOCK_MONOTONIC at the last pair before a monotonic time, else at the first pair."""
        return self._wall_offset[max(bisect_right(self._mono, mono_ns) - 1, 0)]

    def suspended_at(self, mono_ns: int) -> int | None:
        """How long the host had been suspended at the pair that `offset_ns` uses; None: not recorded."""
        found = self._suspended[max(bisect_right(self._mono, mono_ns) - 1, 0)]
        return found if found >= 0 else None

    def suspended_ns(self, mono_ns: int) -> tuple[int, int | None]:
        """Least and most time that the host had been suspended until a time (CLOCK_MONOTONIC).

        None: that is not recorded.
        """
        at = bisect_right(self._mono, mono_ns)
        least_ns = max(self._suspended[at - 1], 0) if at else 0
        after = self._suspended[at] if at < len(self._suspended) else -1
        return least_ns, max(least_ns, after) if after >= 0 else None

    def steps(self, least_ns: int) -> Iterator[ClockStep]:
        """The steps of the wall clock that are larger than this."""
        for at in range(1, len(self._mono)):
            by_ns = self._wall_offset[at] - self._wall_offset[at - 1]
            before, after = self._suspended[at - 1], self._suspended[at]
            is_told = before >= 0 and after >= 0
            by_ns -= after - before if is_told else 0
            if abs(by_ns) > least_ns:
                yield ClockStep(
                    after_ns=self._mono[at - 1] + self._wall_offset[at - 1],
                    until_ns=self._mono[at] + self._wall_offset[at],
                    by_ns=by_ns,
                    bound_ns=2 * self.reading_ns,
                    may_be_suspended=by_ns > 0 and not is_told,
                )

    @property
    def reading_ns(self) -> int:
        """How far apart the two readings of a pair may be: the spread of the offsets while no clock was set."""
        differences = sorted(abs(after - before) for before, after in pairwise(self._wall_offset))
        return max([_READING_NS, *differences[: len(differences) // 2]])


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip() or "?"
    except OSError:
        return "?"  # equal to none
