"""Timed sleeps of the launching thread: a pause, or a loop that looks again and again whether something is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.host_code.thread_waits import thread_running_meanwhile
from ingero.diagnose.findings import FindingKind
from ingero.diagnose.lost_time.no_demand import MIN_SHARE_AT_WORK
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.diagnose.samples.stack_samples import RUN, SampledTime, group_samples, sampled_time
from ingero.store.arrays.spans import length_ns

_MIN_STEPS = 10  # that slept, before the numbers of their sleeps are compared
_MIN_LOOKS = 2.0  # sleeps per step that slept, before they are looks
_IRREGULAR = 0.10  # of the steps that slept did so another number of times than most: a fixed number are pauses
_MIN_GROWTH = (
    1.25  # times the share of the baseline's time in which it was: one that always computes makes nothing late
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """The thread of the process that computed while the loop looked. work: its samples. share: of the sleep, 0 to 1."""

    tid: int
    name: str
    work: SampledTime
    share: float


def is_timed(segment: PathSegment) -> bool:
    """Whether the launching thread itself slept until its own timer, in no call that reads or polls."""
    is_sleep = segment.depth == 0 and segment.state == "sleep" and segment.waker_kind == "timer"
    return is_sleep and not segment.is_receiving


def looks_per_step(case: Case, sleeps: Sequence[PathSegment]) -> float:
    """How often the loop looked, per step that slept; 0.0 where its sleeps are pauses: always as many."""
    if not sleeps:
        return 0.0
    steps = np.searchsorted(case.sync_intervals["sync_end_ns"], [sleep.end_ns for sleep in sleeps])
    counts = np.array(list(Counter(steps.tolist()).values()))
    if (
        len(counts) < _MIN_STEPS
        or counts.mean() < _MIN_LOOKS
        or float((counts != np.median(counts)).mean()) <= _IRREGULAR
    ):
        return 0.0
    return float(counts.mean())


def maker_meanwhile(case: Case, sleeps: Sequence[PathSegment]) -> Maker | None:
    """The thread of the process that was at work for most of these sleeps, and less in the baseline; None: no such."""
    launching = set(case.evidence.launching(case.process.process).threads) | {sleep.tid for sleep in sleeps}
    tid, groups = thread_running_meanwhile(case, sleeps, launching)
    work, slept_ns = sampled_time(groups), sum(sleep.duration_ns for sleep in sleeps)
    share = min(work.ns / max(slept_ns, 1), 1.0)
    usual_ns = sum(
        group.ns
        for group in group_samples(case.evidence, case.process.process, case.baseline_windows, None, RUN)
        if group.tid == tid
    )
    usual = usual_ns / max(length_ns(case.baseline_windows), 1)
    is_late = case.kind is FindingKind.INCIDENT and share > _MIN_GROWTH * usual
    if not work.is_enough or share < MIN_SHARE_AT_WORK or not is_late:
        return None
    return Maker(tid=tid, name=case.evidence.thread_names.get(tid, ""), work=work, share=share)
