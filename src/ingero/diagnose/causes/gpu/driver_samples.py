"""What the GPU took in the seconds of some samples of its driver, against the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.evidence.process_gpus import samples_of
from ingero.store.machine import GpuUse
from ingero.store.records import Window
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

MIN_SAMPLES = 2  # of the driver, one a second: fewer tell nothing of a lost time
TOLERANCE = 0.15  # between a slowdown and the ratio of the clocks
_YOUNG_NS = 3 * SECOND_NS  # a lost time; in an older one samples are missing
_LITTLE = 0.1  # of what the GPU has lost
_NEXT_NS = SECOND_NS * 3 // 2  # two samples further apart have another between them, or one was not taken


def awaits_samples(case: Case) -> bool:
    """Whether the driver will soon tell more of a device that has just become slower, as that is recorded.

    Whoever comes to a device takes CPUs first, to start: the case may have begun before. And what comes and goes each
    second may be gone again as the driver speaks.
    """
    slower = Window(begin_ns=_slower_since_ns(case), end_ns=case.evidence.window.end_ns)
    if not _goes_on(case) or slower.duration_ns >= _YOUNG_NS or not case.evidence.gpu_samples:
        return False
    return len(samples_of(case.evidence, case.process, case.device, [slower])) < MIN_SAMPLES


def since_last_sample_ns(case: Case) -> float:
    """What the GPU has lost since its driver was last asked, of a lost time that goes on as it is recorded."""
    times = [one.time_ns for one in samples_of(case.evidence, case.process, case.device, [case.window])]
    if not _goes_on(case) or not times or case.window.end_ns - max(times) > _NEXT_NS:
        return 0.0
    usual, newest = _usual_ns(case), case.sync_intervals["sync_end_ns"] > max(times)
    return float(np.where(newest & (usual > 0), np.maximum(case.sync_intervals["busy_ns"] - usual, 0), 0).sum())


def _goes_on(case: Case) -> bool:
    """Whether it is a lost time that is recorded while it is looked at."""
    return case.evidence.is_live and case.evidence.window.end_ns - case.window.end_ns < SECOND_NS


def _slower_since_ns(case: Case) -> int:
    """Since when the GPU lost all but a little of what it has lost in this case."""
    usual = _usual_ns(case)
    lost = np.cumsum(np.where(usual > 0, case.sync_intervals["busy_ns"] - usual, 0))
    if not len(lost):
        return case.window.begin_ns
    before = np.flatnonzero(lost <= _LITTLE * lost[-1])
    first = min(int(before[-1]) + 1 if len(before) else 0, len(lost) - 1)
    return max(case.window.begin_ns, int(case.sync_intervals["prev_sync_end_ns"][first]))


def mean_mhz(samples: Sequence[GpuUse]) -> float:
    """Of its multiprocessors; 0 where it does not say."""
    clocks = [one.sm_clock_mhz for one in samples if one.sm_clock_mhz]
    return sum(clocks) / len(clocks) if clocks else 0.0


def share_of(case: Case, held: Sequence[GpuUse], *, ratio: float = 0.0) -> float:
    """Of what the GPU took beyond the reference, that of the sync intervals in these seconds.

    ratio: by which they are slower; then with those just as slow after the last of them, if that ends before the next
    sample: what the samples tell ended in between.
    """
    usual = _usual_ns(case)
    beyond = np.where(usual > 0, np.maximum(case.sync_intervals["busy_ns"] - usual, 0), 0)
    inside = _inside(case, held)
    if ratio:
        slowdown = np.divide(case.sync_intervals["busy_ns"], usual, out=np.zeros(len(usual)), where=usual > 0)
        inside |= _after(case, held, np.abs(slowdown / ratio - 1) <= TOLERANCE)
    return float(beyond[inside].sum() / max(beyond.sum(), 1))


def beyond_ns(case: Case, sample: GpuUse) -> float:
    """What the GPU took beyond the reference in the second before a sample."""
    usual, inside = _usual_ns(case), _inside(case, [sample])
    return float(np.where(inside & (usual > 0), np.maximum(case.sync_intervals["busy_ns"] - usual, 0), 0).sum())


def _usual_ns(case: Case) -> Array:
    """What the GPU usually takes for each of the sync intervals; 0 where that is not known."""
    found = np.zeros(len(case.sync_intervals))
    for key, one in case.usual.items():
        found[case.sync_intervals["step_type"] == key] = one.reference.busy_ns
    return found


def _after(case: Case, held: Sequence[GpuUse], is_slow: Array) -> Array:
    """The slow sync intervals of a second after a held one that ends with others or sees the lost time end."""
    times = sorted(one.time_ns for one in held)
    found = np.zeros(len(is_slow), bool)
    for time_ns, next_ns in zip(times, [*times[1:], None], strict=True):
        if next_ns is None or next_ns - time_ns > _NEXT_NS:
            end_ns = time_ns + SECOND_NS
            edge = (case.sync_intervals["prev_sync_end_ns"] >= time_ns) & (case.sync_intervals["sync_end_ns"] <= end_ns)
            if edge.any() and (case.window.end_ns < end_ns or not is_slow[edge][-1]):
                found |= edge & is_slow
    return found


def _inside(case: Case, held: Sequence[GpuUse], length_ns: int = SECOND_NS) -> Array:
    """The sync intervals in these seconds; one longer than a second is in all that it touches."""
    begins, ends = case.sync_intervals["prev_sync_end_ns"], case.sync_intervals["sync_end_ns"]
    inside = np.zeros(len(ends), bool)
    for one in held:
        inside |= (ends > one.time_ns - length_ns) & (begins < one.time_ns)
    return inside


def slowdown_of(case: Case, held: Sequence[GpuUse], length_ns: int = SECOND_NS) -> float | None:
    """Device time against the reference, of the sync intervals in these seconds.

    length_ns: of the time before each sample; what comes and goes is mixed with other time in a whole second.
    """
    inside = _inside(case, held, length_ns)
    keys = case.sync_intervals["step_type"][inside]
    usual = sum(one.reference.busy_ns * int((keys == key).sum()) for key, one in case.usual.items())
    known = inside & np.isin(case.sync_intervals["step_type"], list(case.usual))
    return float(case.sync_intervals["busy_ns"][known].sum()) / usual if usual else None
