"""What the waits of a case went into: critical paths of the epochs that lost most, without a worker's usual work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ingero.diagnose.feeding import EMPTY, ENQUEUE, WORTH_NS, Ends
from ingero.diagnose.model import Bucket, FindingKind, Part
from ingero.diagnose.offcpu_blocks import BLOCK_NS
from ingero.diagnose.roles import data_workers
from ingero.diagnose.usual_work import Growth, Steps, beyond_usual, work_growth
from ingero.diagnose.waits import Segment

if TYPE_CHECKING:
    from ingero.diagnose.cases import Case

Array = np.ndarray[Any, np.dtype[Any]]

BLOCKED = ("io", "kernel_lock")  # in the kernel
WAITS = ("sleep", *BLOCKED)  # states that a path explains
_MOST_PATHS = 2000  # epochs whose waits are followed; the slowest, scaled to all
_MOST_BLOCKS = 8  # of BLOCK_NS, whose intervals off the CPU are read for that
_MOST_LATE = 2000  # epochs that were picked up late, the latest
_PARTS: Mapping[Part, Ends] = {Part.EMPTY: EMPTY, Part.ENQUEUE: ENQUEUE}


@dataclass(frozen=True, slots=True)
class Paths:
    """The pieces of the paths of one part of the epochs, latest first within each.

    whole_ns: the waiting that they explain; more than their sum where nothing on a path says what some of it was for.
    """

    segments: Sequence[Segment]
    whole_ns: int

    def share(self, is_mine: Callable[[Segment], bool]) -> float:
        """Of the waiting, the share of the pieces that are meant."""
        mine = sum(one.duration_ns for one in self.segments if is_mine(one))
        return mine / self.whole_ns if mine else 0.0


def paths(case: Case, part: Part, chosen: Array, growth: Growth) -> Paths:
    """Of the chosen epochs (indexes); growth: see `usual_work.work_growth`, empty against zero."""
    seen_ns, kept, found = 0, list[Segment](), list[Segment]()
    for epoch, path in _each(case, _PARTS[part], chosen):
        seen_ns += sum(one.duration_ns for one in path)
        found += path
        kept += beyond_usual(path, growth, lambda one, epoch=epoch: _before(case, one, epoch))  # type: ignore[misc]
    if not kept:
        return Paths(found, seen_ns)
    kept_ns = sum(one.duration_ns for one in kept)
    return Paths(kept, max(kept_ns, min(seen_ns, _lost_ns(case, part, chosen))))


def late_waits(case: Case) -> list[Segment]:
    """Waits of the draining thread between the device's end and its return, of the epochs picked up latest."""
    late = case.epochs[case.epochs["p_ns"] > WORTH_NS]
    chosen = late[np.argsort(-late["p_ns"], kind="stable")[:_MOST_LATE]]
    found: list[Segment] = []
    for epoch in chosen:
        path = case.evidence.waits.path(int(epoch["b_tid"]), int(epoch["r_ns"]), int(epoch["b_ns"]))
        found += [one for one in path if one.depth == 0 and one.state in BLOCKED]
    return found


def growth_of_workers(case: Case) -> Growth:
    """Of the workers of a case's process: what they do beyond their usual work."""
    if case.kind is not FindingKind.INCIDENT:
        return {}
    own = case.process.process
    steps = [case.evidence.lane_in(one, own) for one in case.baselines]
    usual_ns = sum(int((one["b_ns"] - one["a_ns"]).sum()) for one in steps) / max(sum(map(len, steps)), 1)
    now = Steps((case.window,), own, float((case.epochs["b_ns"] - case.epochs["a_ns"]).mean()))
    mine = [number for number in case.members if number != own]
    alike = {one.process for one in data_workers(case.evidence, case.process)}
    return work_growth(case.evidence, mine, now, Steps(case.baselines, own, usual_ns), alike)


def slowest(epochs: Array, excess_ns: Array) -> Array:
    """Indexes of the epochs that lost most, of the few pieces of time in which most was lost."""
    blocks = epochs["b_ns"] // BLOCK_NS
    places, inverse = np.unique(blocks, return_inverse=True)
    if len(places) > _MOST_BLOCKS:
        lost = np.bincount(inverse, weights=np.maximum(excess_ns, 0))
        chosen = np.flatnonzero(np.isin(inverse, np.argsort(-lost, kind="stable")[:_MOST_BLOCKS]))
    else:
        chosen = np.arange(len(blocks))
    order: Array = chosen[np.argsort(-excess_ns[chosen], kind="stable")[:_MOST_PATHS]]
    return order


def _each(case: Case, ends: Ends, chosen: Array) -> Iterator[tuple[Any, list[Segment]]]:
    """The paths without what the clocks of the epochs count as the step's own."""
    feeding = case.evidence.feeding(case.process.process)
    for index in chosen.tolist():
        epoch = case.epochs[index]
        if case.excess_ns[index] > 0 and epoch[ends.length] > WORTH_NS:
            yield epoch, [one for one in feeding.path(epoch, ends) if not feeding.has(one)]


def _before(case: Case, piece: Segment, epoch: Any) -> Iterator[Segment]:
    """What made a worker's piece late: one step back, without what the process itself did for it."""
    step_ns = int(epoch["b_ns"] - epoch["a_ns"])
    return (one for one in case.evidence.waits.before(piece, step_ns) if one.pid != case.process.pid)


def _lost_ns(case: Case, part: Part, chosen: Array) -> int:
    """Lost in the waits of a part by these epochs."""
    lost = sum(max(case.buckets.get(Bucket(part, state), 0), 0) for state in WAITS)
    share = np.maximum(case.excess_ns[chosen], 0).sum() / max(case.loss_ns, 1)
    return int(lost * min(share, 1.0))
