"""Lost time inside traced calls that take longer, or come more often per sync interval, than in the baseline."""

from __future__ import annotations

from dataclasses import dataclass

from ingero.diagnose.cases.case import Case, OpChange
from ingero.diagnose.findings import Bucket, FindingKind, Link, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.ops import OPS, Kind
from ingero.units import format_ns, format_number

_KINDS = {(int(op.source), op.code): op.kind for op in OPS}
ON_PATH = "exact sums of the calls on the critical path, while the GPU was idle or short of work"
INSIDE = ("run", "sleep", "uninterruptible")  # states in which a call itself takes time; runnable has its own rules
_MAX_BASELINE_SHARE = 0.5  # of the calls per step; counts are sums of seconds, of which a case has parts


@dataclass(frozen=True, slots=True)
class CallGrowth:
    """The calls of some kinds in a case, and the time that they took beyond the baseline.

    is_as_many: each sync interval has as many launches as others of its step type, so that only longer launches count
    as growth: where the mix of step types differs from the baseline's, counts per sync interval differ for that reason.
    is_against_zero: for a bottleneck, which has no baseline. noun: `step` or `sync interval`.
    """

    changes: tuple[OpChange, ...]
    sync_intervals: int
    is_as_many: bool = False
    is_against_zero: bool = False
    noun: str = "step"

    @property
    def grown_ns(self) -> float:
        """Time of the calls beyond the baseline over the entire case, ns."""
        return max(sum(map(self._grown_ns, self.changes)), 0.0) * self.sync_intervals

    def _grown_ns(self, change: OpChange) -> float:
        return change.longer_ns if self.is_as_many and kind_of(change) & Kind.LAUNCH else change.grown_ns

    @property
    def count(self) -> float:
        """Calls per sync interval."""
        return sum(change.count for change in self.changes)

    @property
    def baseline_count(self) -> float:
        """Calls per sync interval in the baseline."""
        return sum(change.baseline_count for change in self.changes)

    @property
    def largest(self) -> OpChange:
        """The call whose time grew most."""
        return max(self.changes, key=self._grown_ns)

    @property
    def text(self) -> str:
        """The largest in words: "cudaMalloc 3.1 ms (baseline 60 us), 1.0 per step (baseline 1.0)"."""
        change = self.largest
        now = format_ns(int(change.mean_ns)) if change.timed else "-"
        if self.is_against_zero:
            return f"{change.totals.name} {now}, {format_number(change.count)} per {self.noun}"
        baseline = f"baseline {format_ns(int(change.baseline_mean_ns))}" if change.baseline_timed else "baseline: none"
        often = f"{format_number(change.count)} per {self.noun} (baseline {format_number(change.baseline_count)})"
        return f"{change.totals.name} {now} ({baseline}), {often}"

    def link(self, *, order: str, text: str = "", structure: str = ON_PATH) -> Link:
        """The time of the largest over the entire case as a link of a chain. text: "" says which call it was."""
        change = self.largest
        return Link(
            text=text or f"the launching thread was inside {change.totals.name}",
            seen_ns=int(change.ns * self.sync_intervals),
            expected_ns=int(change.baseline_ns * self.sync_intervals),
            structure=structure,
            order=order,
        )


def grown_calls(case: Case, kinds: Kind) -> CallGrowth | None:
    """The growth of the calls of these kinds in a case; None where there was no such call."""
    mine = [change for change in case.op_changes if kind_of(change) & kinds]
    is_as_many = case.kind is FindingKind.INCIDENT and case.resync is None
    is_against_zero = case.kind is FindingKind.BOTTLENECK
    return CallGrowth(tuple(mine), case.sync_interval_count, is_as_many, is_against_zero, case.noun) if mine else None


def kind_of(change: OpChange) -> Kind:
    """The kind of a call."""
    return kind_of_op(change.totals.source, change.totals.op)


def kind_of_op(source: int, op: int) -> Kind:
    """The kind of an operation's calls, by `Source` and operation code."""
    return _KINDS.get((source, op), Kind.NONE)


def claim_inside_calls(
    case: Case, parts: tuple[Part, ...], grown: CallGrowth, *, already_claimed_by: tuple[str, ...] = ()
) -> dict[Bucket, int]:
    """Unclaimed lost time of these parts that the growth of these calls explains.

    already_claimed_by: causes whose findings have claimed time inside the same calls.
    """
    return case.claimable(parts, INSIDE, max(grown.grown_ns - claimed_ns(case, already_claimed_by), 0))


def claimed_ns(case: Case, causes: tuple[str, ...]) -> int:
    """Lost time that findings of these causes have claimed."""
    return sum(finding.lost_ns for finding in case.findings if finding.cause in causes)


def claim_in_waits(case: Case, grown: CallGrowth, limit_ns: float) -> dict[Bucket, int]:
    """At most limit_ns of the unclaimed lost time inside calls that may wait for the GPU: before it had work.

    In steps by repetition, where it is not known when the GPU was idle, the waits count as well, if most of the calls
    are additional ones: as many calls as ever that wait for longer wait for a slower GPU.
    """
    claims = case.claimable((Part.IDLE, Part.LAUNCH), INSIDE, limit_ns)
    if case.is_of_steps and grown.baseline_count < _MAX_BASELINE_SHARE * grown.count:
        claims |= case.claimable((Part.GPU,), (GPU_EXECUTION,), limit_ns - sum(claims.values()))
    return claims
