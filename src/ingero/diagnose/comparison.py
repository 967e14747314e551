"""Two recordings of one program, before and after: what changed by class of epoch, by cause and by call.

A change is only called better or worse when it is larger than the noise of both recordings; the noise is shown with it.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.engine import diagnose_evidence
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.model import Diagnosis
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.step_comparison import StepPair, has_steps, is_same_work, step_pairs
from ingero.diagnose.profile.words import who
from ingero.diagnose.rule import all_rules
from ingero.store import histograms
from ingero.store.reader import Reader
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

MIN_CHANGE = 0.03  # two untraced runs differ as much: below, no verdict
MIN_TAIL_CHANGE = 0.20  # of p99: that of a launch differs by up to 15 % between two recordings of one healthy loop
NOISE_FACTOR = 3
MIN_EPOCHS = 20
MIN_CALLS = 20
CHUNKS = 20  # whose means say how much a recording varies within itself
_BUCKET_RATIO = 2 ** (1 / 8) - 1  # width of a bucket of a histogram: quantiles are not known better


class Verdict(enum.Enum):
    """What a change is."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference beyond noise"
    NEW = "only after"
    GONE = "only before"
    UNKNOWN = "too few to tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassChange:
    """One class of epochs of the main lanes. Means, because a median does not see one stall in eight.

    change_ratio: of the mean, after against before; noise_ratio: one sigma of it. None where it is in one of them only.
    """

    name: str
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
    """One cause: its incidents and the share of the recording that they lost."""

    cause: str
    before: int
    after: int
    before_lost_ratio: float
    after_lost_ratio: float
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class OpChange:
    """One operation; the verdict is about p99, whose noise is that of the counts and of the histogram's buckets."""

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
class StepChange:
    """The steps of one type of one process. The verdict is about the median, which no single slow step moves.

    change_ratio: of the mean; noise_ratio: one sigma of the median's. busy and idle: of the GPU in the mean step, None
    where no profiler measured them.
    """

    process: str
    name: str
    before: int
    after: int
    before_mean_ns: float
    after_mean_ns: float
    before_median_ns: float
    after_median_ns: float
    before_busy_ns: float | None
    after_busy_ns: float | None
    before_idle_ns: float | None
    after_idle_ns: float | None
    change_ratio: float | None
    median_change_ratio: float | None
    noise_ratio: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileChange:
    """One process of both, as a profiler measured it: shares of the time that each profile covers."""

    process: str
    before_busy_ratio: float
    after_busy_ratio: float
    before_blocked_ratio: float
    after_blocked_ratio: float
    before_data_loading_ratio: float
    after_data_loading_ratio: float
    before_collective_wait_ratio: float
    after_collective_wait_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """change_ratio: of the time for the same work, over the classes that are in both; weighed as before.

    is_by_step: neither of them has sync intervals, and change_ratio is of the steps.
    """

    classes: tuple[ClassChange, ...]
    causes: tuple[CauseChange, ...]
    ops: tuple[OpChange, ...]
    change_ratio: float | None
    noise_ratio: float | None
    verdict: Verdict
    is_by_step: bool = False
    steps: tuple[StepChange, ...] = ()
    profiles: tuple[ProfileChange, ...] = ()


@dataclass(frozen=True, slots=True)
class _Side:
    evidence: Evidence
    diagnosis: Diagnosis
    epochs: Mapping[str, Array]  # lengths by the text of the class, in order of time


def compare(before: Reader, before_window: Window, after: Reader, after_window: Window) -> Comparison:
    """What is different in the second of them."""
    first, second = _side(before, before_window), _side(after, after_window)
    found = Comparison(
        classes=tuple(_class_changes(first, second)),
        causes=tuple(_cause_changes(first, second)),
        ops=tuple(_op_changes(first, second)),
        change_ratio=None,
        noise_ratio=None,
        verdict=Verdict.UNKNOWN,
    )
    if found.classes:
        change, noise = _overall(found.classes)
        return replace(found, change_ratio=change, noise_ratio=noise, verdict=verdict_of(change, noise))
    return _with_steps(found, first.evidence, second.evidence)


def _with_steps(found: Comparison, first: Evidence, second: Evidence) -> Comparison:
    steps = tuple(_step_change(pair) for pair in step_pairs(first, second))
    change, noise = _overall(steps)
    median, _ = _overall([replace(step, change_ratio=step.median_change_ratio) for step in steps])
    return replace(
        found,
        is_by_step=has_steps(first) or has_steps(second),
        steps=steps,
        profiles=tuple(_profile_changes(first.profiles.reports, second.profiles.reports)),
        change_ratio=change,
        noise_ratio=noise,
        verdict=verdict_of(median, noise),
    )


def _step_change(pair: StepPair) -> StepChange:
    first, second = pair.before, pair.after
    return StepChange(
        process=pair.process,
        name=pair.name,
        before=len(first.step_ns),
        after=len(second.step_ns),
        before_mean_ns=_mean(first.step_ns),
        after_mean_ns=_mean(second.step_ns),
        before_median_ns=float(np.median(first.step_ns)),
        after_median_ns=float(np.median(second.step_ns)),
        before_busy_ns=_optional_mean(first.busy_ns),
        after_busy_ns=_optional_mean(second.busy_ns),
        before_idle_ns=None if first.busy_ns is None else _mean(first.step_ns - first.busy_ns),
        after_idle_ns=None if second.busy_ns is None else _mean(second.step_ns - second.busy_ns),
        change_ratio=pair.change_ratio,
        median_change_ratio=pair.median_change_ratio,
        noise_ratio=pair.noise_ratio,
        verdict=verdict_of(pair.median_change_ratio, pair.noise_ratio),
    )


def _optional_mean(lengths: Array | None) -> float | None:
    return None if lengths is None else _mean(lengths)


def _profile_changes(first: Sequence[ProfileReport], second: Sequence[ProfileReport]) -> Iterator[ProfileChange]:
    """Where both have as many processes that run the same kernels."""
    pairs = zip(first, second, strict=True) if len(first) == len(second) else ()
    for was, now in (pair for pair in pairs if is_same_work(pair[0].work, pair[1].work)):
        yield ProfileChange(
            process=who(was.process),
            before_busy_ratio=was.busy_ratio,
            after_busy_ratio=now.busy_ratio,
            before_blocked_ratio=sum(was.blocked.values()),
            after_blocked_ratio=sum(now.blocked.values()),
            before_data_loading_ratio=was.data_loading_ratio,
            after_data_loading_ratio=now.data_loading_ratio,
            before_collective_wait_ratio=was.collective_wait_ns / was.wall_ns,
            after_collective_wait_ratio=now.collective_wait_ns / now.wall_ns,
        )


def verdict_of(change_ratio: float | None, noise_ratio: float | None, least: float = MIN_CHANGE) -> Verdict:
    """More is worse: of times. least: a change that is never called one below."""
    if change_ratio is None or noise_ratio is None:
        return Verdict.UNKNOWN
    if abs(change_ratio) <= max(least, NOISE_FACTOR * noise_ratio):
        return Verdict.SAME
    return Verdict.WORSE if change_ratio > 0 else Verdict.BETTER


def _side(reader: Reader, window: Window) -> _Side:
    evidence = Evidence(reader, window)
    lengths: dict[str, list[Array]] = defaultdict(list)
    for lane in evidence.lanes.values():
        for key in np.unique(lane["class_key"]):
            mine = lane[lane["class_key"] == key]
            lengths[evidence.text(int(key))].append(mine["b_ns"] - mine["a_ns"])
    epochs = {name: np.concatenate(parts) for name, parts in lengths.items()}
    return _Side(evidence, diagnose_evidence(evidence, all_rules()), epochs)


def _class_changes(first: _Side, second: _Side) -> Iterator[ClassChange]:
    """Most time first."""
    names = {**first.epochs, **second.epochs}
    none: Array = np.zeros(0, np.int64)
    for name in sorted(names, key=lambda name: -float(names[name].sum())):
        yield _class_change(name, first.epochs.get(name, none), second.epochs.get(name, none))


def _class_change(name: str, before: Array, after: Array) -> ClassChange:
    is_known = min(len(before), len(after)) >= MIN_EPOCHS
    change = float(after.mean() / before.mean() - 1) if is_known else None
    noise = (_noise(before) ** 2 + _noise(after) ** 2) ** 0.5 if is_known else None
    verdict = verdict_of(change, noise)
    if not len(before) or not len(after):
        verdict = Verdict.NEW if len(after) else Verdict.GONE
    return ClassChange(
        name=name,
        before=len(before),
        after=len(after),
        before_mean_ns=_mean(before),
        after_mean_ns=_mean(after),
        before_p99_ns=_p99(before),
        after_p99_ns=_p99(after),
        change_ratio=change,
        noise_ratio=noise,
        verdict=verdict,
    )


def _noise(lengths: Array) -> float:
    """Standard error of the mean as a ratio, by the means of pieces: neighbours in time are alike."""
    means = np.array([piece.mean() for piece in np.array_split(lengths, min(CHUNKS, len(lengths) // 4))])
    return float(means.std(ddof=1) / len(means) ** 0.5 / means.mean())


def _mean(lengths: Array) -> float:
    return float(lengths.mean()) if len(lengths) else 0.0


def _p99(lengths: Array) -> float:
    return float(np.quantile(lengths, 0.99)) if len(lengths) else 0.0


def _overall(classes: Sequence[ClassChange | StepChange]) -> tuple[float | None, float | None]:
    known = [one for one in classes if one.change_ratio is not None and one.noise_ratio is not None]
    weights = np.array([one.before * one.before_mean_ns for one in known])
    if not known or not weights.sum():
        return None, None
    weights /= weights.sum()
    change = sum(weight * (one.change_ratio or 0.0) for weight, one in zip(weights, known, strict=True))
    noise = sum((weight * (one.noise_ratio or 0.0)) ** 2 for weight, one in zip(weights, known, strict=True)) ** 0.5
    return float(change), float(noise)


def _cause_changes(first: _Side, second: _Side) -> Iterator[CauseChange]:
    """Largest share first. Without lost time (a kill, a hang) the number of incidents decides."""
    (before, before_count), (after, after_count) = _shares(first), _shares(second)
    for cause in sorted(before_count | after_count, key=lambda one: -max(before.get(one, 0), after.get(one, 0))):
        was, now = before.get(cause, 0.0), after.get(cause, 0.0)
        verdict = Verdict.SAME
        if not after_count.get(cause):
            verdict = Verdict.GONE
        elif not before_count.get(cause):
            verdict = Verdict.NEW
        elif abs(now - was) > MIN_CHANGE:
            verdict = Verdict.WORSE if now > was else Verdict.BETTER
        yield CauseChange(
            cause=cause,
            before=before_count.get(cause, 0),
            after=after_count.get(cause, 0),
            before_lost_ratio=was,
            after_lost_ratio=now,
            verdict=verdict,
        )


def _shares(side: _Side) -> tuple[dict[str, float], dict[str, int]]:
    lost: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for one in side.diagnosis.incidents:
        # a profile's incidents are of its typical steps, which is less than the whole seconds that its counts span
        of_profile = side.evidence.profiles.reports and one.lost_ratio
        lost[one.cause] += of_profile or one.lost_ns / max(side.evidence.window.duration_ns, 1)
        counts[one.cause] += 1
    return dict(lost), dict(counts)


def _op_changes(first: _Side, second: _Side) -> Iterator[OpChange]:
    """Most time first."""
    before, after = _ops(first), _ops(second)
    spent = {name: sums[1] for name, sums in (before | after).items()}
    for name in sorted(spent, key=lambda name: -spent[name]):
        was, now = before.get(name), after.get(name)
        change = noise = None
        if was and now and min(was[0], now[0]) >= MIN_CALLS:
            change, noise = _tail_change(was[2], now[2])
        verdict = verdict_of(change, noise, MIN_TAIL_CHANGE) if was and now else Verdict.NEW if now else Verdict.GONE
        yield OpChange(
            name=name,
            before=was[0] if was else 0,
            after=now[0] if now else 0,
            before_p50_ns=_quantile(was, 0.5),
            after_p50_ns=_quantile(now, 0.5),
            before_p99_ns=_quantile(was, 0.99),
            after_p99_ns=_quantile(now, 0.99),
            change_ratio=change,
            noise_ratio=noise,
            verdict=verdict,
        )


_Op = tuple[int, int, "histograms.Counts | None"]  # count, sum in ns, histogram


def _ops(side: _Side) -> dict[str, _Op]:
    found: dict[str, _Op] = {}
    reader, window = side.evidence.reader, side.evidence.window
    counts = reader.op_histograms(window) if reader.is_recorded("raw_call_sites") else {}
    for one in reader.op_totals(window):
        if one.count:
            count, spent, histogram = found.get(one.name, (0, 0, None))
            mine = counts.get((one.process, one.source, one.op))
            if mine is not None:
                histogram = mine if histogram is None else histogram + mine
            found[one.name] = (count + one.count, spent + one.sum_ns, histogram)
    return found


def _quantile(op: _Op | None, at: float) -> float | None:
    return _at(op[2], (at,))[0] if op and op[2] is not None and op[2].any() else None


def _tail_change(
    before: histograms.Counts | None, after: histograms.Counts | None
) -> tuple[float | None, float | None]:
    """Of p99, with one sigma: half the range of the quantiles whose rank is two sigma away, and half a bucket."""
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
