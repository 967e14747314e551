"""Critical paths of a case: what the longest waits went into, without the baseline work of the process's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ingero.diagnose.cases.baseline_work import Steps, WorkGrowth, beyond_baseline, work_growth
from ingero.diagnose.findings import Bucket, FindingKind, Part
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.offcpu.interval_blocks import BLOCK_NS
from ingero.diagnose.samples.process_roles import data_workers
from ingero.diagnose.steps.launching_threads import IDLE_FIELDS, LAUNCH_FIELDS, MIN_SLEEP_NS, PartFields
from ingero.events import STATES

if TYPE_CHECKING:
    from ingero.diagnose.cases.case import Case

Array = np.ndarray[Any, np.dtype[Any]]

BLOCKED = ("io", "uninterruptible")  # states of a wait in the kernel
_IO = STATES.index("io")
WAITS = ("sleep", *BLOCKED)  # states that a path explains
_MAX_PATHS = 2000  # sync intervals whose waits are followed: the slowest, scaled to all
_MAX_BLOCKS = 8  # of BLOCK_NS, whose off-CPU intervals are read for that
_MAX_LATE = 2000  # sync intervals with a return delay: those with the longest
_PARTS: Mapping[Part, PartFields] = {Part.IDLE: IDLE_FIELDS, Part.LAUNCH: LAUNCH_FIELDS}


@dataclass(frozen=True, slots=True)
class Paths:
    """The path segments of one part of the sync intervals, latest first within each sync interval.

    whole_ns: the wait that they divide; longer than their sum where some of it has no reason on any path.
    """

    segments: Sequence[PathSegment]
    whole_ns: int

    def share(self, is_mine: Callable[[PathSegment], bool]) -> float:
        """The share of the chosen segments in the wait, 0 to 1."""
        mine = sum(segment.duration_ns for segment in self.segments if is_mine(segment))
        return mine / self.whole_ns if mine else 0.0


def paths(case: Case, part: Part, chosen: Array, growth: WorkGrowth) -> Paths:
    """The critical paths of a part of the chosen sync intervals (indexes).

    growth: see `baseline_work.work_growth`; empty for a bottleneck, which is compared with zero.
    """
    seen_ns, kept, found = 0, list[PathSegment](), list[PathSegment]()
    for sync_interval, path in _each(case, _PARTS[part], chosen):
        seen_ns += sum(segment.duration_ns for segment in path)
        found += path
        kept += beyond_baseline(path, growth, partial(_before, case, sync_interval))
    if not kept:
        return Paths(found, seen_ns)
    kept_ns = sum(segment.duration_ns for segment in kept)
    return Paths(kept, max(kept_ns, min(seen_ns, _lost_ns(case, part, chosen))))


def late_waits(case: Case) -> list[PathSegment]:
    """Waits of the syncing thread from GPU done to the return of its sync, of the intervals with the longest delay.

    I/O waits count anywhere in the call, because none of them is a wait for the GPU.
    """
    sync_intervals = case.sync_intervals
    late_ns = sync_intervals["return_delay_ns"] + np.maximum(sync_intervals["sync_state_ns"][:, _IO], 0)
    latest = np.argsort(-late_ns, kind="stable")[:_MAX_LATE]
    found: list[PathSegment] = []
    for sync_interval in sync_intervals[latest[late_ns[latest] > MIN_SLEEP_NS]]:
        done_ns, begin_ns = int(sync_interval["gpu_done_ns"]), int(sync_interval["sync_start_ns"])
        if sync_interval["sync_state_ns"][_IO] <= 0:
            begin_ns = done_ns
        path = case.evidence.critical_paths.path(
            int(sync_interval["sync_tid"]), begin_ns, int(sync_interval["sync_end_ns"])
        )
        own = (segment for segment in path if segment.depth == 0)
        found += [
            segment
            for segment in own
            if segment.state == "io" or (segment.state in BLOCKED and segment.begin_ns >= done_ns)
        ]
    return found


def growth_of_workers(case: Case) -> WorkGrowth:
    """The work of the process's workers per step beyond their baseline work (see `work_growth`)."""
    if case.kind is not FindingKind.INCIDENT:
        return {}
    own = case.process.process
    steps = [case.evidence.gpu_stream_in(window, own) for window in case.baseline_windows]
    baseline_ns = sum(int((one["sync_end_ns"] - one["prev_sync_end_ns"]).sum()) for one in steps) / max(
        sum(map(len, steps)), 1
    )
    now = Steps(
        (case.window,),
        own,
        float((case.sync_intervals["sync_end_ns"] - case.sync_intervals["prev_sync_end_ns"]).mean()),
    )
    mine = [number for number in case.members if number != own]
    alike = {worker.process for worker in data_workers(case.evidence, case.process)}
    return work_growth(case.evidence, mine, now, Steps(case.baseline_windows, own, baseline_ns), alike)


def slowest(sync_intervals: Array, excess_ns: Array) -> Array:
    """Indexes of the sync intervals that lost most, within the few blocks of time that lost most."""
    blocks = sync_intervals["sync_end_ns"] // BLOCK_NS
    places, inverse = np.unique(blocks, return_inverse=True)
    if len(places) > _MAX_BLOCKS:
        lost = np.bincount(inverse, weights=np.maximum(excess_ns, 0))
        chosen = np.flatnonzero(np.isin(inverse, np.argsort(-lost, kind="stable")[:_MAX_BLOCKS]))
    else:
        chosen = np.arange(len(blocks))
    order: Array = chosen[np.argsort(-excess_ns[chosen], kind="stable")[:_MAX_PATHS]]
    return order


def _each(case: Case, fields: PartFields, chosen: Array) -> Iterator[tuple[Any, list[PathSegment]]]:
    """The path of each chosen sync interval, without what its thread-state time already counts (launching threads)."""
    launching = case.evidence.launching(case.process.process)
    for index in chosen.tolist():
        sync_interval = case.sync_intervals[index]
        if case.excess_ns[index] > 0 and sync_interval[fields.length] > MIN_SLEEP_NS:
            path = launching.path(sync_interval, fields)
            yield sync_interval, [segment for segment in path if not launching.has(segment)]


def _before(case: Case, sync_interval: Any, piece: PathSegment) -> Iterator[PathSegment]:
    """What made a worker's segment late: the path one step back, without segments of the process itself."""
    step_ns = int(sync_interval["sync_end_ns"] - sync_interval["prev_sync_end_ns"])
    path = case.evidence.critical_paths.before(piece, step_ns)
    return (segment for segment in path if segment.pid != case.process.pid)


def _lost_ns(case: Case, part: Part, chosen: Array) -> int:
    """Time that the chosen sync intervals lost in the waits of a part, ns."""
    lost = sum(max(case.buckets.get(Bucket(part, state), 0), 0) for state in WAITS)
    share = np.maximum(case.excess_ns[chosen], 0).sum() / max(case.lost_ns, 1)
    return int(lost * min(share, 1.0))
