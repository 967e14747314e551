"""What a case's waits went into: critical paths of the sync intervals that lost most, without a worker's usual work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ingero.diagnose.cases.baseline_work import Growth, Steps, beyond_usual, work_growth
from ingero.diagnose.findings import Bucket, FindingKind, Part
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.diagnose.offcpu.interval_blocks import BLOCK_NS
from ingero.diagnose.samples.process_roles import data_workers
from ingero.diagnose.steps.launching_threads import EMPTY, ENQUEUE, WORTH_NS, Ends
from ingero.events import STATES

if TYPE_CHECKING:
    from ingero.diagnose.cases.case import Case

Array = np.ndarray[Any, np.dtype[Any]]

BLOCKED = ("io", "uninterruptible")  # in the kernel
_IO = STATES.index("io")
WAITS = ("sleep", *BLOCKED)  # states that a path explains
_MOST_PATHS = 2000  # sync intervals whose waits are followed; the slowest, scaled to all
_MOST_BLOCKS = 8  # of BLOCK_NS, whose intervals off the CPU are read for that
_MOST_LATE = 2000  # sync intervals that were returned late, the latest
_PARTS: Mapping[Part, Ends] = {Part.IDLE: EMPTY, Part.LAUNCH: ENQUEUE}


@dataclass(frozen=True, slots=True)
class Paths:
    """The pieces of the paths of one part of the sync intervals, latest first within each.

    whole_ns: the waiting that they explain; more than their sum where nothing on a path says what some of it was for.
    """

    segments: Sequence[Segment]
    whole_ns: int

    def share(self, is_mine: Callable[[Segment], bool]) -> float:
        """Of the waiting, the share of the pieces that are meant."""
        mine = sum(one.duration_ns for one in self.segments if is_mine(one))
        return mine / self.whole_ns if mine else 0.0


def paths(case: Case, part: Part, chosen: Array, growth: Growth) -> Paths:
    """Of the chosen sync intervals (indexes); growth: see `usual_work.work_growth`, empty against zero."""
    seen_ns, kept, found = 0, list[Segment](), list[Segment]()
    for sync_interval, path in _each(case, _PARTS[part], chosen):
        seen_ns += sum(one.duration_ns for one in path)
        found += path
        kept += beyond_usual(path, growth, lambda one, sync_interval=sync_interval: _before(case, one, sync_interval))  # type: ignore[misc]
    if not kept:
        return Paths(found, seen_ns)
    kept_ns = sum(one.duration_ns for one in kept)
    return Paths(kept, max(kept_ns, min(seen_ns, _lost_ns(case, part, chosen))))


def late_waits(case: Case) -> list[Segment]:
    """Waits of the syncing thread between the GPU's end and its return, of the sync intervals picked up latest.

    I/O waits anywhere in the call: none of them is for the GPU.
    """
    sync_intervals = case.sync_intervals
    late_ns = sync_intervals["return_delay_ns"] + np.maximum(sync_intervals["sync_state_ns"][:, _IO], 0)
    latest = np.argsort(-late_ns, kind="stable")[:_MOST_LATE]
    found: list[Segment] = []
    for sync_interval in sync_intervals[latest[late_ns[latest] > WORTH_NS]]:
        done_ns, begin_ns = int(sync_interval["gpu_done_ns"]), int(sync_interval["sync_start_ns"])
        if sync_interval["sync_state_ns"][_IO] <= 0:
            begin_ns = done_ns
        path = case.evidence.waits.path(int(sync_interval["sync_tid"]), begin_ns, int(sync_interval["sync_end_ns"]))
        found += [
            one
            for one in path
            if one.depth == 0 and (one.state == "io" or (one.state in BLOCKED and one.begin_ns >= done_ns))
        ]
    return found


def growth_of_workers(case: Case) -> Growth:
    """Of the workers of a case's process: what they do beyond their usual work."""
    if case.kind is not FindingKind.INCIDENT:
        return {}
    own = case.process.process
    steps = [case.evidence.gpu_stream_in(one, own) for one in case.baselines]
    usual_ns = sum(int((one["sync_end_ns"] - one["prev_sync_end_ns"]).sum()) for one in steps) / max(
        sum(map(len, steps)), 1
    )
    now = Steps(
        (case.window,),
        own,
        float((case.sync_intervals["sync_end_ns"] - case.sync_intervals["prev_sync_end_ns"]).mean()),
    )
    mine = [number for number in case.members if number != own]
    alike = {one.process for one in data_workers(case.evidence, case.process)}
    return work_growth(case.evidence, mine, now, Steps(case.baselines, own, usual_ns), alike)


def slowest(sync_intervals: Array, excess_ns: Array) -> Array:
    """Indexes of the sync intervals that lost most, of the few pieces of time in which most was lost."""
    blocks = sync_intervals["sync_end_ns"] // BLOCK_NS
    places, inverse = np.unique(blocks, return_inverse=True)
    if len(places) > _MOST_BLOCKS:
        lost = np.bincount(inverse, weights=np.maximum(excess_ns, 0))
        chosen = np.flatnonzero(np.isin(inverse, np.argsort(-lost, kind="stable")[:_MOST_BLOCKS]))
    else:
        chosen = np.arange(len(blocks))
    order: Array = chosen[np.argsort(-excess_ns[chosen], kind="stable")[:_MOST_PATHS]]
    return order


def _each(case: Case, ends: Ends, chosen: Array) -> Iterator[tuple[Any, list[Segment]]]:
    """The paths without what the clocks of the sync intervals count as the step's own."""
    launching = case.evidence.launching(case.process.process)
    for index in chosen.tolist():
        sync_interval = case.sync_intervals[index]
        if case.excess_ns[index] > 0 and sync_interval[ends.length] > WORTH_NS:
            yield sync_interval, [one for one in launching.path(sync_interval, ends) if not launching.has(one)]


def _before(case: Case, piece: Segment, sync_interval: Any) -> Iterator[Segment]:
    """What made a worker's piece late: one step back, without what the process itself did for it."""
    step_ns = int(sync_interval["sync_end_ns"] - sync_interval["prev_sync_end_ns"])
    return (one for one in case.evidence.waits.before(piece, step_ns) if one.pid != case.process.pid)


def _lost_ns(case: Case, part: Part, chosen: Array) -> int:
    """Lost in the waits of a part by these sync intervals."""
    lost = sum(max(case.buckets.get(Bucket(part, state), 0), 0) for state in WAITS)
    share = np.maximum(case.excess_ns[chosen], 0).sum() / max(case.lost_ns, 1)
    return int(lost * min(share, 1.0))
