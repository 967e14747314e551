"""Counts and time breakdown of the steps and sync intervals that ended in a second, by process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ingero.events import BLOCKED_KINDS, SyncIntervalFlag
from ingero.step_counts import StepCount
from ingero.store.writing.tables import STEPS, SYNC_INTERVALS, Rows

_PROCESS = SYNC_INTERVALS.columns.index("process")
_GPU = tuple(SYNC_INTERVALS.columns.index(column) for column in ("idle_ns", "busy_ns"))
_RETURN_DELAY, _FLAGS = SYNC_INTERVALS.columns.index("return_delay_ns"), SYNC_INTERVALS.columns.index("flags")
_OF_STEP = {name: STEPS.columns.index(name) for name in ("process", "how", "start_ns", "end_ns")}
_BLOCKED = tuple(STEPS.columns.index(f"blocked_{kind}_ns") for kind in BLOCKED_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSums:
    """Sums of one second. counts: by process number. Of sync intervals, over all streams: GPU idle, busy, or done and
    sync not returned; where launches were not traced, neither idle nor busy is known, and nothing is added. Of steps
    by repetition: the host's own time, and what their thread was blocked for the GPU.
    """

    counts: Mapping[int, StepCount] = field(default_factory=dict)
    idle_ns: int = 0
    busy_ns: int = 0
    return_delay_ns: int = 0
    host_ns: int = 0
    blocked_ns: int = 0

    @property
    def total(self) -> StepCount:
        """The step count of all processes."""
        return sum_of(self.counts.values())

    def plus_intervals(self, rows: Rows) -> IntervalSums:
        """These sums plus sync intervals (rows of `tables.SYNC_INTERVALS`)."""
        seen = [not int(flags or 0) & SyncIntervalFlag.ENQUEUES_UNSEEN for flags in rows.column(_FLAGS)]
        idle, busy = (_sum(ns for ns, is_seen in zip(rows.column(part), seen, strict=True) if is_seen) for part in _GPU)
        counts = Counter(map(_number, rows.column(_PROCESS)))
        return replace(
            self,
            counts=_add_counts(self.counts, {one: StepCount(sync_intervals=count) for one, count in counts.items()}),
            idle_ns=self.idle_ns + idle,
            busy_ns=self.busy_ns + busy,
            return_delay_ns=self.return_delay_ns + _sum(rows.column(_RETURN_DELAY)),
        )

    def plus_steps(self, rows: Rows, both: int) -> IntervalSums:
        """These sums plus steps (rows of `tables.STEPS`). both: text number of steps whose stream was synced."""
        columns = {name: list(map(_number, rows.column(place))) for name, place in _OF_STEP.items()}
        counts = Counter(columns["process"])
        synced = Counter(
            process for process, how in zip(columns["process"], columns["how"], strict=True) if how == both
        )
        steps = {process: StepCount(steps=count, synced=synced[process]) for process, count in counts.items()}
        blocked = sum(_sum(rows.column(place)) for place in _BLOCKED)
        return replace(
            self,
            counts=_add_counts(self.counts, steps),
            host_ns=self.host_ns + sum(columns["end_ns"]) - sum(columns["start_ns"]) - blocked,
            blocked_ns=self.blocked_ns + blocked,
        )


def sum_of(counts: Iterable[StepCount]) -> StepCount:
    """The sum of several step counts."""
    total = StepCount()
    for count in counts:
        total = total.plus(count)
    return total


def counts_together(seconds: Iterable[IntervalSums]) -> dict[int, StepCount]:
    """The step counts by process over several seconds."""
    total: dict[int, StepCount] = {}
    for second in seconds:
        total = _add_counts(total, second.counts)
    return total


def _add_counts(first: Mapping[int, StepCount], second: Mapping[int, StepCount]) -> dict[int, StepCount]:
    return {**first, **{process: first.get(process, StepCount()).plus(count) for process, count in second.items()}}


def _sum(parts: Iterable[object]) -> int:
    return sum(ns for ns in parts if isinstance(ns, int))


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
