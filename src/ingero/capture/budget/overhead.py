"""Measures what tracing costs: the traps of the busiest traced thread, and the agent's own CPU time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingero.attach.groups import GROUP_OF_OP, Coverage, Coverages, Group
from ingero.capture.budget.levels import RUNTIME_OF, Load
from ingero.capture.budget.trap_cost import TrapCosts
from ingero.capture.sums.cells import CellGrowth

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What tracing cost in a second. ratio: of the wall time of the thread that paid most, `tid`.

    seen: that thread's probed entries, by group as they were traced: what was passed over is in hits_per_s only.
    """

    ratio: float = 0.0
    hits_per_s: float = 0.0
    tid: int = 0
    seen: Load = field(default_factory=lambda: Load(hits={}, nested_ratio={}))


@dataclass(slots=True)
class _Mix:
    """Probe hits of one process by group of calls, and what they cost in all."""

    alone: dict[Group, int] = field(default_factory=dict)
    nested: dict[Group, int] = field(default_factory=dict)
    hits: int = 0
    cost_ns: float = 0.0


class OverheadMeter:
    """Measures overhead from the growth of counts between two readings; the first has nothing to compare with."""

    def __init__(self) -> None:
        self._before: Array | None = None

    def read(self, threads: Array, cells: Iterable[CellGrowth], costs: TrapCosts) -> Overhead:
        """The cost since the last call. threads: `struct thread_dump`; cells: their growth in the same time."""
        hits, seconds = self._growth(threads)
        self._before = threads[np.argsort(threads["tid"])][["tid", "created_ns", "hits", "now_ns"]]
        mixes = _mixes(cells, costs)
        found = Overhead()
        slots = threads["process_slot"].astype(np.int64)
        for slot in np.unique(slots).tolist():
            mine = np.flatnonzero(slots == slot)
            busiest = mine[int((hits[mine] / seconds[mine]).argmax())]
            total, mix = int(hits[mine].sum()), mixes.get(slot, _Mix())
            if not total:
                continue
            passed_over = max(0, total - mix.hits)
            mean_ns = (mix.cost_ns + passed_over * costs.suspended_ns) / (mix.hits + passed_over)
            rate = float(hits[busiest] / seconds[busiest])
            if rate * mean_ns / 1e9 > found.ratio:
                found = Overhead(
                    ratio=rate * mean_ns / 1e9,
                    hits_per_s=rate,
                    tid=int(threads["tid"][busiest]),
                    seen=_load(mix, rate / (mix.hits + passed_over)),
                )
        return found

    def most_hits(self, threads: Array) -> int:
        """Probed entries since the last reading, of the thread that had most of them."""
        hits, _ = self._growth(threads)
        return int(hits.max(initial=0))

    def _growth(self, threads: Array) -> tuple[Array, Array]:
        """Probe hits and seconds of each thread since the last reading, or since it began to be traced."""
        hits, since_ns = threads["hits"].astype(np.int64), threads["created_ns"].astype(np.int64)
        if self._before is not None and len(self._before):
            rows = np.searchsorted(self._before["tid"], threads["tid"]).clip(max=len(self._before) - 1)
            before = self._before[rows]
            is_known = (before["tid"] == threads["tid"]) & (before["created_ns"] == threads["created_ns"])
            hits -= np.where(is_known, before["hits"].astype(np.int64), 0)
            since_ns = np.where(is_known, before["now_ns"].astype(np.int64), since_ns)
        return hits, np.maximum(threads["now_ns"].astype(np.int64) - since_ns, 1) / 1e9


def _mixes(cells: Iterable[CellGrowth], costs: TrapCosts) -> dict[int, _Mix]:
    """Probe hits by process slot."""
    mixes: dict[int, _Mix] = {}
    for cell in cells:
        mix = mixes.setdefault(cell.slot, _Mix())
        group = GROUP_OF_OP.get(cell.op, Group.REST)
        count, nested = int(cell.growth["count"]), int(cell.growth["nested"])
        timed = min(count, int(cell.histogram.sum(dtype=np.uint64)))
        mix.alone[group] = mix.alone.get(group, 0) + count
        mix.nested[group] = mix.nested.get(group, 0) + nested
        mix.hits += count + nested
        mix.cost_ns += timed * costs.full_ns + (count - timed) * costs.counted_ns + nested * costs.nested_ns
    return mixes


def _load(mix: _Mix, scale: float) -> Load:
    hits = {group: mix.alone[group] + mix.nested[group] for group in mix.alone}
    return Load(
        hits={group: count * scale for group, count in hits.items()},
        nested_ratio={group: mix.nested[group] / count if count else 0.0 for group, count in hits.items()},
    )


class LoadEstimate:
    """Estimates the load as if everything were traced: untraced calls are taken to keep their ratio to traced ones."""

    def __init__(self) -> None:
        self._when_seen: dict[Group, Load] = {}

    def update(self, seen: Load, left: Coverages) -> Load:
        """Updates the estimate. left: the coverage during the whole second of `seen`."""
        traced = {group: seen.hits.get(group, 0.0) for group in Group if left[group] is not Coverage.NONE}
        now = Load(hits=traced, nested_ratio=seen.nested_ratio)
        for group in traced:
            self._when_seen[group] = now
        hits = {group: traced[group] if group in traced else self._scaled(group, traced) for group in Group}
        return Load(hits=hits, nested_ratio={group: self._nested_ratio(group) for group in Group})

    def _nested_ratio(self, group: Group) -> float:
        last = self._when_seen.get(group)
        return last.nested_ratio.get(group, 0.0) if last else 0.0

    def _scaled(self, group: Group, traced: Mapping[Group, float]) -> float:
        """The last known rate of a group, scaled like traced calls: the driver's part of them, if possible."""
        last = self._when_seen.get(group)
        if last is None:
            return 0.0
        inner = next((driver for driver, runtime in RUNTIME_OF.items() if runtime is group), None)
        anchors = {inner} if inner in traced and inner in last.hits else traced.keys() & last.hits.keys()
        then = sum(last.hits[anchor] for anchor in anchors if anchor)
        now = sum(traced[anchor] for anchor in anchors if anchor)
        return last.hits[group] * (now / then if then else 1.0)
