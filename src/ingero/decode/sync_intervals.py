"""Splits each sync interval into GPU idle, GPU busy and return delay, with bounds of the error.

GPU idle ends at the first launch, GPU busy when the GPU is done, the return delay with the return of the sync. All is
measured but when the GPU was done: that is exact where the thread slept until then, and an interval where it was
descheduled while it polled. There the stream's usual busy time says where in the interval it lies, later by as much as
the host was late with its launches. The rules and their error are measured in docs/adr/0004-readiness.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.events import STATES, SyncIntervalFlag

Array = np.ndarray[Any, np.dtype[Any]]

NO_WAIT_NS = 30_000  # a sync this short that was never off the CPU found the GPU ready
SPIN_NS = 50_000  # back on the CPU, a thread that finds the GPU ready returns within 40 us, caches cold
POLLED_NS = 500_000  # one that returned later than this had polled and found the GPU busy; in between, either
NEVER_POLLED_NS = 5_000  # descheduled this soon after entry: it had not looked at the GPU yet
SLEEPER_SHARE = 0.2  # a stream whose syncs sleep: one that did not sleep did not wait
POINT_RATIO = 0.005  # two sync intervals of the same work take the same time within 1%
UNBELIEVABLE_SHARE = 0.5  # of a device this much slower than ever it is rather believed that the thread had not polled
MIN_NS_PER_BYTE = 1 / 32  # no thread copies its memory faster
_RUN, _SLEEP = STATES.index("run"), STATES.index("sleep")
KEPT_SHARE = 0.7  # three in ten may be delayed by what checkpoints do not show; a slower device shows in half
HISTORY = 64  # sync intervals that a smaller batch is filled up to; more would hide that the GPU has changed


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadiness:
    """When the GPU was done in each sync interval, CLOCK_MONOTONIC ns, shape (n,): at the earliest, at the latest,
    probably.

    is_no_wait: the GPU was ready when the sync began. is_estimated: `ready` is a point inside [low, high].
    """

    low: Array
    high: Array
    ready: Array
    is_no_wait: Array
    is_estimated: Array

    def __getitem__(self, which: slice) -> GpuReadiness:
        """A selection of the sync intervals."""
        return GpuReadiness(**{name: getattr(self, name)[which] for name in self.__dataclass_fields__})

    @classmethod
    def concatenate(cls, parts: Sequence[GpuReadiness]) -> GpuReadiness:
        """The concatenation of several."""
        return cls(**{name: np.concatenate([getattr(one, name) for one in parts]) for name in cls.__dataclass_fields__})


class StreamSyncs:
    """The syncs of one stream, judged batch by batch with the history of earlier ones."""

    def __init__(self) -> None:
        self._recent: Array | None = None
        self._usual_busy_ns: dict[bytes, float] = {}
        self._ns_per_byte = np.inf
        self._copied = (0, 0)

    def parted(self, batch: Array) -> Array:
        """The sync intervals (`struct sync_interval_record`), each that a copy ended cut where that went over from
        waiting to copying.

        What the copy took then counts in the next sync interval, whose first work it is: as the clocks of the thread do
        that copied. Where it slept, all that it ran after its wake-up; where it polled, what its bytes take at the
        least, as the copies show that found their stream done, else the fastest of this stream so far. A thread copies
        while it
        runs: what kept it from running, or from going on at once, stays with the wait, so that it may have been off its
        CPU after the cut.
        """
        batch = batch.copy()
        copied = self._copied_ns(batch)
        before = np.concatenate([[self._copied], np.column_stack([batch["return_ns"], copied])])[:-1]
        self._copied = (int(batch["return_ns"][-1]), int(copied[-1]))
        more = np.where(before[:, 0] == batch["begin_ns"], before[:, 1], 0)
        is_first = batch["first_ns"] == batch["begin_ns"]
        for part, chosen, unknown in (
            ("launch_state_ns", is_first, SyncIntervalFlag.LAUNCH_OTHER_THREAD),
            ("idle_state_ns", ~is_first, SyncIntervalFlag.IDLE_OTHER_THREAD),
        ):
            batch[part][:, _RUN] += np.where(chosen & ((batch["flags"] & unknown) == 0), more, 0).astype(np.uint64)
        batch["first_ns"] -= np.where(is_first, more, 0).astype(np.uint64)
        batch["begin_ns"] -= more.astype(np.uint64)
        batch["sync_state_ns"][:, _RUN] -= copied.astype(np.uint64)
        batch["return_ns"] -= copied.astype(np.uint64)
        return batch

    def _copied_ns(self, batch: Array) -> Array:
        """The time that copies took after waiting, ns; 0 for other syncs."""
        is_copy = (batch["flags"] & SyncIntervalFlag.BEFORE_COPY) != 0
        has_slept = _have_slept(batch)
        is_known = has_slept | (_have_slept(self._beside_recent(batch)).mean() > SLEEPER_SHARE)
        ran = batch["sync_state_ns"][:, _RUN].astype(np.int64)
        since = np.where(has_slept, batch["woken_ns"], batch["sync_ns"]).astype(np.int64)
        longest = np.clip(np.minimum(ran, batch["return_ns"].astype(np.int64) - since), 0, None)
        if not is_copy.any():
            return np.zeros(len(batch), np.int64)
        size_bytes = np.maximum(batch["copied_bytes"].astype(np.float64), 1)
        is_whole = is_copy & ((batch["flags"] & SyncIntervalFlag.INCOMPLETE) == 0)
        fastest = float((longest / size_bytes)[is_whole].min(initial=np.inf))
        self._ns_per_byte = min(self._ns_per_byte, max(fastest, MIN_NS_PER_BYTE))
        seen = batch["copy_ns_per_mib"] / (
            1 << 20
        )  # of copies that had nothing to wait for: others may all have waited
        ns_per_byte = np.where(seen > 0, np.clip(seen, MIN_NS_PER_BYTE, self._ns_per_byte), self._ns_per_byte)
        least = np.minimum(size_bytes * ns_per_byte, longest)
        copied: Array = np.where(is_copy, np.where(is_known, longest, least), 0).astype(np.int64)
        return copied

    def judge(self, batch: Array) -> GpuReadiness:
        """When the GPU was done in each `struct sync_interval_record`; batches in order of time."""
        window = self._beside_recent(batch)
        self._recent = window[-HISTORY:].copy()  # a part of it would keep all of it
        bounds = _bounds(window)
        work = work_keys(window)
        for key in dict.fromkeys(work):
            members = np.asarray([other == key for other in work])
            if bounds.is_estimated[members].any() or key not in self._usual_busy_ns:
                self._usual_busy_ns[key] = _estimate(window, bounds, members, self._usual_busy_ns.get(key))
        return _with_unseen_copies(window, bounds)[len(window) - len(batch) :]

    def _beside_recent(self, batch: Array) -> Array:
        return batch if self._recent is None else np.concatenate([self._recent, batch])[-max(HISTORY, len(batch)) :]


def work_keys(sync_intervals: Array) -> list[bytes]:
    """Keys equal for equal work: the same operations and graph, launches and bytes within a factor of two.

    Where enqueues are not seen the time until the GPU is ready counts from the sync's entry: no other is like it.
    """
    sizes = [np.frexp(sync_intervals[name].astype(np.float64))[1].astype("<i8") for name in ("launches", "size_bytes")]
    unseen = sync_intervals["are_enqueues_unseen"].astype("<i8")
    columns = np.column_stack(
        [sync_intervals["op_set"].astype("<i8"), sync_intervals["graph"].astype("<i8"), *sizes, unseen]
    )
    return [row.tobytes() for row in columns]


def _bounds(sync_intervals: Array) -> GpuReadiness:
    """The certain bounds; `ready` is the latest time for now."""
    first, sync, back = (sync_intervals[name].astype(np.int64) for name in ("first_ns", "sync_ns", "return_ns"))
    off, on = sync_intervals["last_off_ns"].astype(np.int64), sync_intervals["last_on_ns"].astype(np.int64)
    on = np.where((on < off) & (off > sync), back, on)  # its switch-in was missed
    woken = (sync_intervals["flags"] & SyncIntervalFlag.WOKEN) != 0
    slept = _have_slept(sync_intervals)
    # where syncs sleep, one in which only the kernel or a disk held the thread up did not: it looked when it could
    held_up = woken & ~slept & (len(sync_intervals) > 0 and slept.mean() > SLEEPER_SHARE)
    woken &= ~held_up
    was_off = on > sync
    is_sleeper = len(sync_intervals) > 0 and woken.mean() > SLEEPER_SHARE
    descheduled = ~woken & was_off & (is_sleeper | (back - on < POLLED_NS))
    no_wait = ~woken & ~was_off & (is_sleeper | (back - sync < NO_WAIT_NS))
    low, high = back.copy(), back.copy()
    low[woken] = high[woken] = sync_intervals["woken_ns"][woken].astype(np.int64)
    low[no_wait] = high[no_wait] = sync[no_wait]
    low[descheduled] = np.maximum(off, sync)[descheduled]
    surely_ready = descheduled & (is_sleeper | (back - on < SPIN_NS))
    high[surely_ready] = on[surely_ready]
    unpolled = descheduled & (off - sync < NEVER_POLLED_NS)
    low[unpolled | held_up] = sync[unpolled | held_up]
    # it was last off the CPU while it copied: how much of that it had done by then it had not waited
    cut_short = ~woken & (on > back + SPIN_NS)
    low[cut_short] = sync[cut_short]
    high[cut_short] = np.maximum(off - (on - back), sync)[cut_short]
    low, high = np.maximum(low, first), np.maximum(high, first)
    return GpuReadiness(low=low, high=high, ready=high.copy(), is_no_wait=no_wait, is_estimated=descheduled | cut_short)


def _have_slept(sync_intervals: Array) -> Array:
    slept: Array = ((sync_intervals["flags"] & SyncIntervalFlag.WOKEN) != 0) & (
        sync_intervals["sync_state_ns"][:, _SLEEP] > 0
    )
    return slept


def _with_unseen_copies(sync_intervals: Array, judged: GpuReadiness) -> GpuReadiness:
    """Widens bounds to the entry: a thread that polled may have copied for longer than the fastest copy."""
    is_copy = (
        sync_intervals["flags"] & (SyncIntervalFlag.BEFORE_COPY | SyncIntervalFlag.WOKEN)
    ) == SyncIntervalFlag.BEFORE_COPY
    unseen = is_copy & ~judged.is_no_wait
    earliest = np.maximum(sync_intervals["sync_ns"], sync_intervals["first_ns"]).astype(np.int64)
    judged.low[unseen] = np.minimum(judged.low, earliest)[unseen]
    return replace(judged, is_estimated=judged.is_estimated | unseen)


def _estimate(sync_intervals: Array, bounds: GpuReadiness, members: Array, usual_busy_ns: float | None) -> float:
    """Places `ready` inside its bounds where it is not exact; returns the usual first-launch-to-ready time, ns."""
    mine = sync_intervals[members]
    first = mine["first_ns"].astype(np.int64)
    low, high = bounds.low[members], bounds.high[members]
    # Ready before the sync: the GPU may have been so for long.
    earliest = np.where(bounds.is_no_wait[members], first, low)
    busy = most_covered_value(earliest - first, high - first, usual_busy_ns)
    late = host_delay_ns(mine, busy)
    busy = most_covered_value(np.maximum(earliest - first - late, 0), high - first - late, busy)
    late = host_delay_ns(mine, busy)
    expected = first + int(busy) + late
    unseen = bounds.is_estimated[members] & (low - expected > UNBELIEVABLE_SHARE * busy)
    low = np.where(unseen, np.minimum(low, np.maximum(mine["away_ns"], mine["sync_ns"]).astype(np.int64)), low)
    bounds.low[members] = low
    bounds.ready[members] = np.where(bounds.is_estimated[members], np.clip(expected, low, high), high)
    return busy


def host_delay_ns(sync_intervals: Array, busy_ns: float) -> Array:
    """How much late launches delayed the end of the GPU's work, ns, if all of it needs `busy_ns`.

    At checkpoint j of a sync interval, the share j * step / launches of its launches was made and the rest yet to come;
    the sync is the last checkpoint. Where between two checkpoints the host stopped is not known: half-way, in the mean.
    """
    first = sync_intervals["first_ns"].astype(np.int64)[:, None]
    sync = sync_intervals["sync_ns"].astype(np.int64)[:, None]
    launches = np.maximum(sync_intervals["launches"].astype(np.float64), 1)[:, None]
    step = sync_intervals["step"].astype(np.float64)[:, None]
    checkpoints = sync_intervals["checkpoint_ns"].astype(np.int64)
    times = np.hstack([np.where(checkpoints > 0, checkpoints, sync), sync]) - first
    made = np.minimum(np.arange(times.shape[1]) * step / launches, 1)
    made[:, 1:][times[:, 1:] == sync - first] = 1
    took = np.maximum(np.diff(times, axis=1), 1)
    pace = np.where(np.diff(made) > 0, took, np.inf).min(axis=1, keepdims=True)
    stopped = np.where(np.isfinite(pace), 1 - np.minimum(pace / took, 1), 0)
    behind = times[:, 1:] - busy_ns * (made[:, 1:] - np.diff(made) * stopped / 2)
    latest: Array = np.maximum(behind, 0).max(axis=1, initial=0).astype(np.int64)
    return latest


def most_covered_value(low: Array, high: Array, usual: float | None = None) -> float:
    """The value that most intervals contain: the middle of the range where the most overlap.

    Exact points count as intervals of 1% width, else no two of them would ever overlap. `usual` is kept as long as
    nearly as many contain it.
    """
    widen = np.maximum((np.abs(low) * POINT_RATIO).astype(np.int64), 500)
    exact = high - low < 2 * widen
    begins = np.where(exact, low - widen, low)
    ends = np.where(exact, high + widen, high)
    at = np.concatenate([begins, ends])
    step = np.concatenate([np.ones(len(begins), np.int64), -np.ones(len(ends), np.int64)])
    order = np.lexsort((-step, at))
    at, depth = at[order], np.cumsum(step[order])
    deepest = int(np.argmax(depth))
    if usual is not None:
        containing = int(((begins <= usual) & (usual <= ends)).sum())
        if containing >= depth[deepest] * KEPT_SHARE:
            return usual
    return float(at[deepest : deepest + 2].mean())


def op_ids(op_set: Array) -> list[int]:
    """The operation ids of a set of 4 words."""
    return [word * 64 + bit for word in range(len(op_set)) for bit in range(64) if int(op_set[word]) >> bit & 1]


def unseen_class_key(op_names: str, sync_name: str) -> str:
    """A step type for incompletely traced enqueues: the remaining operations, and the sync call."""
    return f"launches not traced|{op_names}|{sync_name}"


def step_type(op_names: str, launches: int, size_bytes: int, graph: int) -> str:
    """The step type of a sync interval: same operations and graph, launches and bytes within a factor of two."""
    return f"{op_names}|2^{int(launches).bit_length()} launches|2^{int(size_bytes).bit_length()} bytes|{int(graph):x}"
