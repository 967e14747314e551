"""Two recordings of one program, before and after: what changed by class of epoch, by cause and by call.

A change is only called better or worse when it is larger than the noise of both recordings; the noise is shown with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingero.diagnose.change_verdict import MIN_CHANGE, Verdict, overall, verdict_of
from ingero.diagnose.engine import diagnose_evidence
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.model import Diagnosis
from ingero.diagnose.profile.step_changes import ProfileChange, StepChange, StepChanges, step_changes
from ingero.diagnose.rule import all_rules
from ingero.store import histograms
from ingero.store.reader import Reader
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

MIN_TAIL_CHANGE = 0.20  # of p99: that of a launch differs by up to 15 % between two recordings of one healthy loop
MIN_EPOCHS = 20
MIN_CALLS = 20
CHUNKS = 20  # whose means say how much a recording varies within itself
_BUCKET_RATIO = 2 ** (1 / 8) - 1  # width of a bucket of a histogram: quantiles are not known better


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassChange:
    """One type of the steps or sync intervals that processes are judged by. Means, because a median does not see one
    stall in eight.

    interval: `step` or `sync interval`. change_ratio: of the mean, after against before; noise_ratio: one sigma of it.
    None where it is in one of them only.
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
class Comparison:
    """change_ratio: of the time for the same work, over the types that are in both; weighed as before.

    is_by_step: no type is in both often enough, and change_ratio is of the steps.
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
    epochs: Mapping[tuple[str, str], Array]  # lengths by what they are called and the text of the type, by time


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
    change, noise = overall(found.classes)
    if change is not None:
        return replace(found, change_ratio=change, noise_ratio=noise, verdict=verdict_of(change, noise))
    steps = step_changes(first.evidence, second.evidence)
    return _by_step(found, steps) if steps.are_known else found


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


def _side(reader: Reader, window: Window) -> _Side:
    evidence = Evidence(reader, window)
    lengths: dict[tuple[str, str], list[Array]] = defaultdict(list)
    for process, lane in evidence.lanes.items():
        noun = evidence.main_lanes[process].noun
        for key in np.unique(lane["class_key"]):
            mine = lane[lane["class_key"] == key]
            lengths[noun, evidence.text(int(key))].append(mine["b_ns"] - mine["a_ns"])
    epochs = {name: np.concatenate(parts) for name, parts in lengths.items()}
    return _Side(evidence, diagnose_evidence(evidence, all_rules()), epochs)


def _class_changes(first: _Side, second: _Side) -> Iterator[ClassChange]:
    """Most time first."""
    names = {**first.epochs, **second.epochs}
    none: Array = np.zeros(0, np.int64)
    for name in sorted(names, key=lambda name: -float(names[name].sum())):
        yield _class_change(*name, first.epochs.get(name, none), second.epochs.get(name, none))


def _class_change(interval: str, name: str, before: Array, after: Array) -> ClassChange:
    is_known = min(len(before), len(after)) >= MIN_EPOCHS
    change = float(after.mean() / before.mean() - 1) if is_known else None
    noise = (_noise(before) ** 2 + _noise(after) ** 2) ** 0.5 if is_known else None
    verdict = verdict_of(change, noise)
    if not len(before) or not len(after):
        verdict = Verdict.NEW if len(after) else Verdict.GONE
    return ClassChange(
        name=name,
        interval=interval,
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
