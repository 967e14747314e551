"""GPU time in the seconds covered by the driver's samples, against the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.process_gpus import gpu_samples_of
from ingero.store.machine import GpuUse
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

MIN_SAMPLES = 2  # one per second: fewer prove nothing about lost time
MAX_SAMPLE_DISTANCE_NS = SECOND_NS * 3 // 2  # between two samples further apart, another one is missing
TOLERANCE = 0.15  # relative, between a slowdown and the clock ratio
_MAX_SLOW_NS = 3 * SECOND_NS  # in a slowdown older than that, samples are missing for good
_MAX_SHARE_BEFORE = 0.1  # of what the GPU has lost in the case


def awaits_samples(case: Case) -> bool:
    """Whether a GPU slowdown is so young, in a live recording, that the driver's samples do not cover it yet.

    A process that comes to a GPU first takes CPU time to start, so that the case may have begun earlier. And load that
    comes and goes every second may be gone again in the next sample.
    """
    slower = Window(begin_ns=_slower_since_ns(case), end_ns=case.evidence.window.end_ns)
    if not _is_live_and_ongoing(case) or slower.duration_ns >= _MAX_SLOW_NS or not case.evidence.gpu_samples:
        return False
    return len(gpu_samples_of(case.evidence, case.process, case.device, [slower])) < MIN_SAMPLES


def lost_since_last_sample_ns(case: Case) -> float:
    """GPU time lost since the driver was last asked, in an ongoing case of a live recording; else 0."""
    times = [sample.time_ns for sample in gpu_samples_of(case.evidence, case.process, case.device, [case.window])]
    if not _is_live_and_ongoing(case) or not times or case.window.end_ns - max(times) > MAX_SAMPLE_DISTANCE_NS:
        return 0.0
    baseline, newest = _baseline_busy_ns(case), case.sync_intervals["sync_end_ns"] > max(times)
    return float(np.where(newest & (baseline > 0), np.maximum(case.sync_intervals["busy_ns"] - baseline, 0), 0).sum())


def _is_live_and_ongoing(case: Case) -> bool:
    """Whether the case is ongoing in a live recording."""
    return case.evidence.is_live and case.evidence.window.end_ns - case.window.end_ns < SECOND_NS


def _slower_since_ns(case: Case) -> int:
    """Since when (mono_ns) the GPU lost all but a small share of what it lost in the case."""
    baseline = _baseline_busy_ns(case)
    lost = np.cumsum(np.where(baseline > 0, case.sync_intervals["busy_ns"] - baseline, 0))
    if not len(lost):
        return case.window.begin_ns
    before = np.flatnonzero(lost <= _MAX_SHARE_BEFORE * lost[-1])
    first = min(int(before[-1]) + 1 if len(before) else 0, len(lost) - 1)
    return max(case.window.begin_ns, int(case.sync_intervals["prev_sync_end_ns"][first]))


def mean_sm_clock_mhz(samples: Sequence[GpuUse]) -> float:
    """Mean SM clock of these samples; 0 where it is unknown."""
    clocks_mhz = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz]
    return sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else 0.0


def lost_share_in_samples(case: Case, samples: Sequence[GpuUse], *, ratio: float = 0.0) -> float:
    """Which share of the GPU's lost time lies in the seconds of these samples (0-1).

    ratio: by which the GPU is slower then; adds equally slow sync intervals after the last sample, if the slowdown ends
    before the next one: what the samples report ended in between.
    """
    baseline = _baseline_busy_ns(case)
    lost = np.where(baseline > 0, np.maximum(case.sync_intervals["busy_ns"] - baseline, 0), 0)
    inside = _in_sampled_seconds(case, samples)
    if ratio:
        slowdown = np.divide(case.sync_intervals["busy_ns"], baseline, out=np.zeros(len(baseline)), where=baseline > 0)
        inside |= _slow_after_last_sample(case, samples, np.abs(slowdown / ratio - 1) <= TOLERANCE)
    return float(lost[inside].sum() / max(lost.sum(), 1))


def lost_before_sample_ns(case: Case, sample: GpuUse) -> float:
    """GPU time lost in the second before a sample."""
    baseline, inside = _baseline_busy_ns(case), _in_sampled_seconds(case, [sample])
    return float(np.where(inside & (baseline > 0), np.maximum(case.sync_intervals["busy_ns"] - baseline, 0), 0).sum())


def _baseline_busy_ns(case: Case) -> Array:
    """Baseline GPU busy time of each sync interval; 0 where it is unknown."""
    busy_ns = np.zeros(len(case.sync_intervals))
    for step_type, best in case.references.items():
        busy_ns[case.sync_intervals["step_type"] == step_type] = best.reference.busy_ns
    return busy_ns


def _slow_after_last_sample(case: Case, samples: Sequence[GpuUse], is_slow: Array) -> Array:
    """Slow sync intervals in the second after a sample, if that second sees the slowdown or the case end."""
    times = sorted(sample.time_ns for sample in samples)
    slow_after = np.zeros(len(is_slow), bool)
    for time_ns, next_ns in zip(times, [*times[1:], None], strict=True):
        if next_ns is None or next_ns - time_ns > MAX_SAMPLE_DISTANCE_NS:
            end_ns = time_ns + SECOND_NS
            edge = (case.sync_intervals["prev_sync_end_ns"] >= time_ns) & (case.sync_intervals["sync_end_ns"] <= end_ns)
            if edge.any() and (case.window.end_ns < end_ns or not is_slow[edge][-1]):
                slow_after |= edge & is_slow
    return slow_after


def _in_sampled_seconds(case: Case, samples: Sequence[GpuUse], length_ns: int = SECOND_NS) -> Array:
    """Which sync intervals overlap the seconds of these samples."""
    begins, ends = case.sync_intervals["prev_sync_end_ns"], case.sync_intervals["sync_end_ns"]
    inside = np.zeros(len(ends), bool)
    for sample in samples:
        inside |= (ends > sample.time_ns - length_ns) & (begins < sample.time_ns)
    return inside


def slowdown_in_samples(case: Case, samples: Sequence[GpuUse], length_ns: int = SECOND_NS) -> float | None:
    """GPU busy time against the baseline, of the sync intervals in the seconds of these samples.

    length_ns: time before each sample; a whole second may mix load that comes and goes with other time.
    """
    inside = _in_sampled_seconds(case, samples, length_ns)
    step_types = case.sync_intervals["step_type"][inside]
    baseline = sum(
        best.reference.busy_ns * int((step_types == step_type).sum()) for step_type, best in case.references.items()
    )
    known = inside & np.isin(case.sync_intervals["step_type"], list(case.references))
    return float(case.sync_intervals["busy_ns"][known].sum()) / baseline if baseline else None
