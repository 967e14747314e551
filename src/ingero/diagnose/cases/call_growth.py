"""Lost time inside traced calls: which take longer, or come more often per sync interval, than in the reference."""

from __future__ import annotations

from dataclasses import dataclass

from ingero.diagnose.cases.case import Case, OpChange
from ingero.diagnose.findings import Bucket, FindingKind, Link, Part
from ingero.ops import OPS, Kind
from ingero.units import format_ns, format_number

_KINDS = {(int(op.source), op.code): op.kind for op in OPS}
ON_PATH = "exact sums of the calls on the critical path, while the GPU was idle or short of work"
INSIDE = ("run", "sleep", "uninterruptible")  # what a call itself can spend; being runnable has its own rules


@dataclass(frozen=True, slots=True)
class Growth:
    """The calls of some kinds in a case, and what they took beyond the reference.

    is_as_many: each sync interval has as many launches as others of its class, so that only longer ones are beyond it:
    where the case has other shares of the classes than the reference, the counts per sync interval differ for that
    alone.
    is_against_zero: of a bottleneck; there is no reference. noun: of what the case is judged by.
    """

    changes: tuple[OpChange, ...]
    sync_intervals: int
    is_as_many: bool = False
    is_against_zero: bool = False
    noun: str = "step"

    @property
    def grown_ns(self) -> float:
        """Over the whole case."""
        return max(sum(map(self._grown_ns, self.changes)), 0.0) * self.sync_intervals

    def _grown_ns(self, one: OpChange) -> float:
        return one.longer_ns if self.is_as_many and kind_of(one) & Kind.LAUNCH else one.grown_ns

    @property
    def count(self) -> float:
        """Calls per sync interval."""
        return sum(one.count for one in self.changes)

    @property
    def usual_count(self) -> float:
        """Calls per sync interval in the reference."""
        return sum(one.usual_count for one in self.changes)

    @property
    def largest(self) -> OpChange:
        """The one that grew most."""
        return max(self.changes, key=self._grown_ns)

    @property
    def text(self) -> str:
        """The largest in words: "cudaMalloc 3.1 ms (usually 60 us), 1.0 per step"."""
        one = self.largest
        now = format_ns(int(one.mean_ns)) if one.timed else "-"
        if self.is_against_zero:
            return f"{one.totals.name} {now}, {format_number(one.count)} per {self.noun}"
        usual = f"baseline {format_ns(int(one.usual_mean_ns))}" if one.usual_timed else "baseline: none"
        often = f"{format_number(one.count)} per {self.noun} (baseline {format_number(one.usual_count)})"
        return f"{one.totals.name} {now} ({usual}), {often}"

    def link(self, *, order: str, text: str = "", structure: str = ON_PATH) -> Link:
        """What the largest took over the whole case, as a link of a chain. text: "": that the thread was inside it."""
        one = self.largest
        return Link(
            text=text or f"the launching thread was inside {one.totals.name}",
            seen_ns=int(one.ns * self.sync_intervals),
            expected_ns=int(one.usual_ns * self.sync_intervals),
            structure=structure,
            order=order,
        )


def growth(case: Case, kinds: Kind) -> Growth | None:
    """The calls of these kinds; None where none was made."""
    mine = [one for one in case.op_changes if kind_of(one) & kinds]
    is_as_many = case.kind is FindingKind.INCIDENT and case.resynced is None
    is_against_zero = case.kind is FindingKind.BOTTLENECK
    return Growth(tuple(mine), case.sync_interval_count, is_as_many, is_against_zero, case.noun) if mine else None


def kind_of(change: OpChange) -> Kind:
    """What a call does."""
    return kind_of_op(change.totals.source, change.totals.op)


def kind_of_op(source: int, op: int) -> Kind:
    """What the calls of an operation do."""
    return _KINDS.get((source, op), Kind.NONE)


def claim(case: Case, parts: tuple[Part, ...], grown: Growth, *, told_by: tuple[str, ...] = ()) -> dict[Bucket, int]:
    """Lost time of these parts that the calls account for, of what is left of it.

    told_by: causes whose findings have claimed time inside the same calls.
    """
    told = sum(one.lost_ns for one in case.findings if one.cause in told_by)
    return case.take(parts, INSIDE, max(grown.grown_ns - told, 0))
