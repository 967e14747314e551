"""Compares two recordings of one program, before and after: what changed by step type, by cause and by call.

A change is only called better or worse when it is larger than the noise of both recordings; the noise is shown with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ingero.diagnose.comparison.change_verdict import MIN_CHANGE, Verdict, overall, verdict_of
from ingero.diagnose.comparison.side import MIN_SYNC_INTERVALS, CauseShare, IntervalLengths, Side, side_of
from ingero.diagnose.profile.step_changes import ProfileChange, StepChange, StepChanges, step_changes
from ingero.store import histograms
from ingero.store.reader import Reader
from ingero.store.records import Window

MIN_TAIL_CHANGE = 0.20  # of p99: that of a launch differs by up to 15% between two recordings of one healthy loop
MIN_CALLS = 20
_BUCKET_RATIO = 2 ** (1 / 8) - 1  # width of a histogram bucket: quantiles are not known more precisely


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassChange:
    """The change of one type of steps or sync intervals. Means, because a median does not see one stall in eight.

    interval: `step` or `sync interval`. change_ratio: of the mean, after against before; noise_ratio: one sigma of it.
    None where the type is in only one recording.
    """

    name: str
    interval: str
    before: int
    after: int
    before_mean_ns: float
    after_mean_ns: float
    before_p99_ns: float
    after_p99_ns: float
    change_ratio: float | None
    noise_ratio: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseChange:
    """The change of one cause: its incidents and the share of the recording that they lost."""

    cause: str
    before: int
    after: int
    before_lost_ratio: float
    after_lost_ratio: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class OpComparison:
    """One operation in both recordings; the verdict is about p99, with noise from the counts and the bucket width."""

    name: str
    before: int
    after: int
    before_p50_ns: float | None
    after_p50_ns: float | None
    before_p99_ns: float | None
    after_p99_ns: float | None
    change_ratio: float | None
    noise_ratio: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that changed between two recordings.

    change_ratio: of the time for the same work, over the types that are in both, weighted by their time before.
    is_by_step: no type is in both often enough, so change_ratio is that of the steps. lost_change_ratio: difference of
    the shares of wall time that the process with most lost time lost; None where one side does not know it.
    """

    classes: tuple[ClassChange, ...]
    causes: tuple[CauseChange, ...]
    ops: tuple[OpComparison, ...]
    change_ratio: float | None
    noise_ratio: float | None
    verdict: Verdict
    is_by_step: bool = False
    steps: tuple[StepChange, ...] = ()
    profiles: tuple[ProfileChange, ...] = ()
    lost_change_ratio: float | None = None


def compare(before: Reader, before_window: Window, after: Reader, after_window: Window) -> Comparison:
    """Compares a window of one recording with a window of another."""
    return compare_sides(side_of(before, before_window), side_of(after, after_window))


def compare_sides(first: Side, second: Side) -> Comparison:
    """Compares two recordings by what is known of each; first: before, second: after."""
    found = Comparison(
        classes=tuple(_class_changes(first, second)),
        causes=tuple(_cause_changes(first, second)),
        ops=tuple(_op_changes(first, second)),
        change_ratio=None,
        noise_ratio=None,
        verdict=Verdict.UNKNOWN,
        lost_change_ratio=_lost_change(first, second),
    )
    change, noise = overall(found.classes)
    if change is not None:
        return replace(found, change_ratio=change, noise_ratio=noise, verdict=verdict_of(change, noise))
    steps = step_changes(first.by_step, second.by_step)
    return _by_step(found, steps) if steps.are_known else found


def _lost_change(first: Side, second: Side) -> float | None:
    if first.lost_ratio is None or second.lost_ratio is None:
        return None
    return second.lost_ratio - first.lost_ratio


def _by_step(found: Comparison, changes: StepChanges) -> Comparison:
    change, noise = overall(changes.steps)
    median, _ = overall([replace(step, change_ratio=step.median_change_ratio) for step in changes.steps])
    return replace(
        found,
        is_by_step=True,
        steps=changes.steps,
        profiles=changes.profiles,
        change_ratio=change,
        noise_ratio=noise,
        verdict=verdict_of(median, noise),
    )


def _class_changes(first: Side, second: Side) -> Iterator[ClassChange]:
    """Most time first."""
    before, after = (
        {(step_class.interval, step_class.name): step_class for step_class in side.classes} for side in (first, second)
    )
    spent_ns = {name: one.sum_ns for name, one in {**before, **after}.items()}
    for name in sorted(spent_ns, key=lambda name: -spent_ns[name]):
        yield _class_change(*name, before.get(name), after.get(name))


def _class_change(
    interval: str, name: str, before: IntervalLengths | None, after: IntervalLengths | None
) -> ClassChange:
    change = noise = None
    if before and after and min(before.count, after.count) >= MIN_SYNC_INTERVALS and before.mean_ns:
        change = after.mean_ns / before.mean_ns - 1
        if before.noise_ratio is not None and after.noise_ratio is not None:
            noise = (before.noise_ratio**2 + after.noise_ratio**2) ** 0.5
    verdict = verdict_of(change, noise)
    if before is None or after is None:
        verdict = Verdict.NEW if after else Verdict.GONE
    return ClassChange(
        name=name,
        interval=interval,
        before=before.count if before else 0,
        after=after.count if after else 0,
        before_mean_ns=before.mean_ns if before else 0.0,
        after_mean_ns=after.mean_ns if after else 0.0,
        before_p99_ns=before.p99_ns if before else 0.0,
        after_p99_ns=after.p99_ns if after else 0.0,
        change_ratio=change,
        noise_ratio=noise,
        verdict=verdict,
    )


def _cause_changes(first: Side, second: Side) -> Iterator[CauseChange]:
    """The changes by cause, largest share first. Without lost time (a kill, a hang) the number of incidents decides."""
    none = CauseShare(cause="", incidents=0, lost_ratio=0.0)
    before, after = ({cause.cause: cause for cause in side.causes} for side in (first, second))
    lost = {
        cause: -max(before.get(cause, none).lost_ratio, after.get(cause, none).lost_ratio) for cause in before | after
    }
    for cause in sorted(lost, key=lambda one: lost[one]):
        was, now = before.get(cause, none), after.get(cause, none)
        verdict = Verdict.SAME
        if not now.incidents:
            verdict = Verdict.GONE
        elif not was.incidents:
            verdict = Verdict.NEW
        elif abs(now.lost_ratio - was.lost_ratio) > MIN_CHANGE:
            verdict = Verdict.WORSE if now.lost_ratio > was.lost_ratio else Verdict.BETTER
        yield CauseChange(
            cause=cause,
            before=was.incidents,
            after=now.incidents,
            before_lost_ratio=was.lost_ratio,
            after_lost_ratio=now.lost_ratio,
            verdict=verdict,
        )


def _op_changes(first: Side, second: Side) -> Iterator[OpComparison]:
    """Most time first."""
    before, after = ({op.name: op for op in side.ops} for side in (first, second))
    spent_ns = {name: one.sum_ns for name, one in (before | after).items()}
    for name in sorted(spent_ns, key=lambda name: -spent_ns[name]):
        was, now = before.get(name), after.get(name)
        was_counts, now_counts = (one.counts() if one else None for one in (was, now))
        change = noise = None
        if was and now and min(was.count, now.count) >= MIN_CALLS:
            change, noise = _tail_change(was_counts, now_counts)
        verdict = verdict_of(change, noise, MIN_TAIL_CHANGE) if was and now else Verdict.NEW if now else Verdict.GONE
        yield OpComparison(
            name=name,
            before=was.count if was else 0,
            after=now.count if now else 0,
            before_p50_ns=_quantile(was_counts, 0.5),
            after_p50_ns=_quantile(now_counts, 0.5),
            before_p99_ns=_quantile(was_counts, 0.99),
            after_p99_ns=_quantile(now_counts, 0.99),
            change_ratio=change,
            noise_ratio=noise,
            verdict=verdict,
        )


def _quantile(counts: histograms.Counts | None, at: float) -> float | None:
    return _at(counts, (at,))[0] if counts is not None and counts.any() else None


def _tail_change(
    before: histograms.Counts | None, after: histograms.Counts | None
) -> tuple[float | None, float | None]:
    """The change of p99 and one sigma of it: from the quantiles two sigma of rank away, and the bucket width."""
    if before is None or after is None or not before.any() or not after.any():
        return None, None
    was, now = _at(before, (0.99,))[0], _at(after, (0.99,))[0]
    return now / max(was, 1.0) - 1, (_tail_noise(before) ** 2 + _tail_noise(after) ** 2) ** 0.5


def _tail_noise(counts: histograms.Counts) -> float:
    rank = 2 * (0.99 * 0.01 / int(counts.sum())) ** 0.5
    low, at, high = _at(counts, (0.99 - rank, 0.99, min(0.99 + rank, 1.0)))
    return max((high - low) / 4 / max(at, 1.0), _BUCKET_RATIO / 12**0.5)


def _at(counts: histograms.Counts, shares: tuple[float, ...]) -> list[float]:
    return histograms.percentiles(counts, [max(share, 0.0) for share in shares])
