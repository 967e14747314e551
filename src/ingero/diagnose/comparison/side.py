"""One side of a comparison: a recording reduced to numbers and names, small enough for a node's answer.

It holds the noise of the recording itself, so that a comparison needs no single steps and intervals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.causes.rule import all_rules
from ingero.diagnose.diagnosis import diagnose_evidence
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Incident
from ingero.diagnose.profile.step_changes import StepSide, profile_sides
from ingero.diagnose.profile.step_comparison import step_groups
from ingero.store import histograms
from ingero.store.reader import Reader
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

MIN_SYNC_INTERVALS = 20
CHUNKS = 20  # pieces of a recording; the spread of their means is its noise


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalLengths:
    """Lengths of the steps or sync intervals of one type.

    interval: `step` or `sync interval`. noise_ratio: one sigma of the mean; None where there are too few.
    """

    interval: str
    name: str
    count: int
    sum_ns: float
    mean_ns: float
    p99_ns: float
    noise_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseShare:
    """The incidents of one cause, and the share of the recording that they lost."""

    cause: str
    incidents: int
    lost_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCounts:
    """All calls of one operation. histogram: number of calls by bucket (`store/histograms`); empty: none was kept."""

    name: str
    count: int
    sum_ns: int
    histogram: Mapping[int, int]

    def counts(self) -> histograms.Counts | None:
        """The histogram, shape (256,); None: none was kept.

        Raises:
            IndexError: there is no such bucket.
        """
        if not self.histogram:
            return None
        found = np.zeros(histograms.BUCKETS, np.int64)
        for bucket, count in self.histogram.items():
            found[bucket] += count
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison. lost_ratio: the largest share of the recording that a process lost; None: not known."""

    classes: tuple[IntervalLengths, ...]
    causes: tuple[CauseShare, ...]
    ops: tuple[OpCounts, ...]
    by_step: StepSide
    lost_ratio: float | None = None


def side_of(reader: Reader, window: Window) -> Side:
    """Reduces a window of one node's recording to one side of a comparison."""
    evidence = Evidence(reader, window)
    incidents = diagnose_evidence(evidence, all_rules()).incidents
    return Side(
        classes=tuple(_classes(evidence)),
        causes=tuple(_causes(evidence, incidents)),
        ops=tuple(_ops(evidence)),
        lost_ratio=_lost_ratio(evidence, incidents),
        by_step=StepSide(steps=tuple(step_groups(evidence)), profiles=tuple(profile_sides(evidence))),
    )


def _classes(evidence: Evidence) -> Iterator[IntervalLengths]:
    lengths: dict[tuple[str, str], list[Array]] = defaultdict(list)
    for process, gpu_stream in evidence.gpu_streams.items():
        noun = evidence.main_streams[process].noun
        for key in np.unique(gpu_stream["step_type"]):
            mine = gpu_stream[gpu_stream["step_type"] == key]
            lengths[noun, evidence.text(int(key))].append(mine["sync_end_ns"] - mine["prev_sync_end_ns"])
    for (noun, name), parts in lengths.items():
        whole = np.concatenate(parts)
        yield IntervalLengths(
            interval=noun,
            name=name,
            count=len(whole),
            sum_ns=float(whole.sum()),
            mean_ns=float(whole.mean()),
            p99_ns=float(np.quantile(whole, 0.99)),
            noise_ratio=_noise(whole) if len(whole) >= MIN_SYNC_INTERVALS else None,
        )


def _noise(lengths: Array) -> float | None:
    """Standard error of the mean as a ratio, by the means of pieces, because neighbors in time are correlated."""
    means = np.array([piece.mean() for piece in np.array_split(lengths, min(CHUNKS, len(lengths) // 4))])
    return float(means.std(ddof=1) / len(means) ** 0.5 / means.mean()) if means.any() else None


def _causes(evidence: Evidence, incidents: Sequence[Incident]) -> Iterator[CauseShare]:
    lost: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for incident in incidents:
        lost[incident.cause] += _share_of(evidence, incident, incident.lost_ns)
        counts[incident.cause] += 1
    for cause, count in counts.items():
        yield CauseShare(cause=cause, incidents=count, lost_ratio=lost[cause])


def _lost_ratio(evidence: Evidence, incidents: Sequence[Incident]) -> float:
    """The share of the recording that the process with most lost time lost: processes are never summed."""
    lost: dict[int, float] = defaultdict(float)
    for incident in incidents:
        for affected in incident.affected:
            lost[affected.process] += _share_of(evidence, incident, affected.lost_ns)
    return max(lost.values(), default=0.0)


def _share_of(evidence: Evidence, incident: Incident, lost_ns: int) -> float:
    # a profile's incidents are of its typical steps, which is less than the whole seconds that its counts span
    of_profile = evidence.profiles.reports and incident.lost_ratio
    return of_profile or lost_ns / max(evidence.window.duration_ns, 1)


def _ops(evidence: Evidence) -> Iterator[OpCounts]:
    reader, window = evidence.reader, evidence.window
    kept = reader.op_histograms(window) if reader.is_recorded("raw_call_sites") else {}
    sums: dict[str, tuple[int, int]] = {}
    counts: dict[str, histograms.Counts] = {}
    for total in reader.op_totals(window):
        if total.count:
            count, spent_ns = sums.get(total.name, (0, 0))
            sums[total.name] = (count + total.count, spent_ns + total.sum_ns)
            mine = kept.get((total.process, total.source, total.op))
            if mine is not None:
                counts[total.name] = counts[total.name] + mine if total.name in counts else mine
    for name, (count, spent_ns) in sums.items():
        dense = counts.get(name)
        sparse = {} if dense is None else {int(at): int(dense[at]) for at in np.flatnonzero(dense)}
        yield OpCounts(name=name, count=count, sum_ns=spent_ns, histogram=sparse)
