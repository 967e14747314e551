"""Time in which no work was requested: the GPU is idle because nothing was asked of the process. It is not lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ingero.diagnose.causes.host_code.polling_loops import polled_ns
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.lost_time.interval_sampling import sample_windows
from ingero.diagnose.offcpu.critical_path import GIL, PathSegment
from ingero.diagnose.samples.process_roles import data_workers, is_waiting_for_answer, trains
from ingero.diagnose.samples.stack_samples import RUN, group_samples
from ingero.events import STATES
from ingero.store.records import Process, WakerTotals
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

_SLEEP = STATES.index("sleep")
_MIN_GAP_NS = 500_000  # shorter gaps are not followed
_MIN_LIVE_SLEEP = 0.01  # of a second; in a live diagnosis less is ignored, because it makes no incident
_MIN_SERVED_SHARE = 0.05  # of the sleep while the GPU was idle ends by a process outside: this one serves requests
_FEW_GAPS = 2_000  # are followed without checking first whether a process outside ever woke this one
_MIN_DEMAND_RATIO = 0.001  # of the window asleep until a process outside ended the sleep; less is no service
MIN_SHARE_AT_WORK = 0.5  # of the sleep, in which another thread was seen at work, before it is what the loop looks for
_ALWAYS = 0.95  # of the sync intervals have a sleep that the thread's own timer ends: that is their pace
_IRREGULAR = 0.10  # of the sync intervals that sleep do so another number of times than most: the process polls
_MIN_PAUSES = 100  # sync intervals that slept, before a pause that was always there belongs to the step
_MANY_LOOKS = 10  # sleeps in one gap that a timer ends: no step has so many pauses
_MOSTLY = 0.9  # of a time asleep, before the looks for work in between are part of the wait
_MAX_PAUSE_NOISE = 0.05  # MAD/median of these pauses
_MAX_GIL_SHARE = 0.10  # of waits for the interpreter lock, which are as long as such sleeps: more prove no poll


@dataclass(slots=True)
class _Sleeps:
    """Sleeps of the syncing thread while the GPU was idle, per gap, by what ended them; gil_ns as in `_Gap`."""

    outside_ns: Array
    timer_ns: Array
    timers: Array
    gil_ns: int = 0
    outside: list[PathSegment] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gap:
    """Sleeps of the syncing thread in one gap, by what ended them; gil_ns: waits for the interpreter lock."""

    outside_ns: int
    timer_ns: int
    timers: int
    gil_ns: int
    outside: tuple[PathSegment, ...]


def without_no_demand(sync_intervals: Array, idle: Array) -> Array:
    """Sync intervals (whole or in short) without `idle` ns each, in which no work was requested: they begin later.

    That time is taken from the sleep first; the rest was used up by checks for work, in other thread states.
    """
    if not idle.any():
        return sync_intervals
    result: Array = sync_intervals.copy()
    whole = idle.astype(np.int64)
    result["prev_sync_end_ns"] += whole
    result["idle_ns"] -= whole
    state_ns = result["idle_state_ns"] if "idle_state_ns" in (result.dtype.names or ()) else None
    sleep = result["idle_sleep_ns"] if state_ns is None else state_ns[:, _SLEEP]
    awake_ns = whole - np.clip(sleep, 0, whole)
    sleep[:] = np.where(sleep > 0, np.maximum(sleep - whole, 0), sleep)
    if state_ns is not None and awake_ns.any():
        others = np.arange(state_ns.shape[1]) != _SLEEP
        total = np.maximum(state_ns[:, others], 0).sum(axis=1)
        left = np.where(total > 0, np.maximum(total - awake_ns, 0) / np.maximum(total, 1), 1.0)
        other_ns = state_ns[:, others]
        state_ns[:, others] = np.where(other_ns > 0, other_ns * left[:, None], other_ns)
    return result


def no_demand_ns(evidence: Evidence, process: Process, gpu_stream: Array) -> Array:
    """Per sync interval, ns in which no work was requested: sleep that a process outside its own tree ended.

    That is no such time where the process trains or is a client: then it waits for an answer. A sleep that a timer ends
    counts where the process is seen to serve requests or to poll; so does the time in which it checks for work without
    ever sleeping. Of very many gaps a sample is followed, and the rest counts by the sample's share of its sleep.
    """
    polled: Array = polled_ns(evidence, process, gpu_stream)
    return np.maximum(_slept_ns(evidence, process, gpu_stream), polled)


def _slept_ns(evidence: Evidence, process: Process, gpu_stream: Array) -> Array:
    idle = np.zeros(len(gpu_stream))
    asleep = (gpu_stream["idle_sleep_ns"] < 0) | (gpu_stream["idle_sleep_ns"] > _MIN_GAP_NS)
    gaps = np.flatnonzero((gpu_stream["idle_ns"] > _MIN_GAP_NS) & asleep)
    if evidence.is_live:
        gaps = _worth_following(gpu_stream, gaps)
    if not len(gaps) or not evidence.has_offcpu:
        return idle
    if (len(gaps) > _FEW_GAPS or evidence.is_live) and not _may_lack_demand(evidence, process):
        return idle
    sample = _sampled(gpu_stream, gaps)
    idle[sample] = _idle_of(evidence, process, gpu_stream, sample)
    if len(sample) < len(gaps):
        rest = np.setdiff1d(gaps, sample, assume_unique=True)
        slept = np.maximum(gpu_stream["idle_sleep_ns"], 0)
        idle[rest] = slept[rest] * min(1.0, idle[sample].sum() / max(int(slept[sample].sum()), 1))
    result: Array = np.minimum(idle, gpu_stream["idle_ns"])
    return result


def _idle_of(evidence: Evidence, process: Process, gpu_stream: Array, sample: Array) -> Array:
    sleeps = _followed(evidence, process, gpu_stream, sample)
    idle = np.zeros(len(sample))
    if not (sleeps.outside and is_waiting_for_answer(evidence, process, sleeps.outside)):
        idle += sleeps.outside_ns
    if data_workers(evidence, process):  # it waits for them, however often it wakes up meanwhile
        return idle
    polls = _polls(sleeps, len(gpu_stream)) and not _is_made(evidence, process, gpu_stream[sample][sleeps.timers > 0])
    if polls or _serves(idle, sleeps):
        idle += sleeps.timer_ns
    return idle


def _is_made(evidence: Evidence, process: Process, gaps: Array) -> bool:
    """Whether a process that trains looked for what another of its threads made: one was at work for most of the gaps.

    A process that trains may look for its next job, too, for as long as nobody has one.
    """
    if not trains(evidence, process):
        return False
    ranges = list(zip(gaps["prev_sync_end_ns"].tolist(), gaps["first_launch_ns"].tolist(), strict=True))
    launching = {*gaps["prev_sync_tid"].tolist(), *evidence.launching(process.process).threads}
    others = [
        tid for tid, (number, _) in evidence.threads.items() if number == process.process and tid not in launching
    ]
    worked = Counter[int]()
    for group in group_samples(evidence, process.process, (evidence.window,), dict.fromkeys(others, ranges), RUN):
        worked[group.tid] += group.ns
    length_ns = sum(end - begin for begin, end in ranges)
    return bool(max(worked.values(), default=0) >= MIN_SHARE_AT_WORK * max(length_ns, 1))


def _worth_following(gpu_stream: Array, gaps: Array) -> Array:
    """The gaps of seconds with enough such sleep to matter."""
    slept = np.where(
        gpu_stream["idle_sleep_ns"][gaps] < 0, gpu_stream["idle_ns"][gaps], gpu_stream["idle_sleep_ns"][gaps]
    )
    _, second = np.unique(gpu_stream["sync_end_ns"][gaps] // SECOND_NS, return_inverse=True)
    worth: Array = gaps[np.bincount(second, weights=slept)[second] >= _MIN_LIVE_SLEEP * SECOND_NS]
    return worth


def _sampled(gpu_stream: Array, gaps: Array) -> Array:
    """The gaps that are followed: all of a few, a sample of many."""
    windows = sample_windows(gpu_stream[gaps])
    ends = gpu_stream["sync_end_ns"][gaps]
    inside = np.zeros(len(gaps), bool)
    for window in windows:
        inside |= (ends >= window.begin_ns) & (ends < window.end_ns)
    chosen: Array = gaps[inside]
    return chosen


def _followed(evidence: Evidence, process: Process, gpu_stream: Array, chosen: Array) -> _Sleeps:
    none = np.zeros(len(chosen))
    sleeps = _Sleeps(none.copy(), none.copy(), none)
    family = evidence.family(process.process)
    is_step = evidence.main_streams[process.process].is_steps
    times = zip(
        *(
            gpu_stream[name][chosen].tolist()
            for name in ("prev_sync_tid", "prev_sync_end_ns", "first_launch_ns", "idle_sleep_ns")
        ),
        strict=True,
    )
    for index, (tid, begin_ns, end_ns, asleep_ns) in enumerate(times):
        gap = evidence.cached_path_answer(
            (process.process, len(family), tid, begin_ns),
            end_ns,
            partial(_gap, evidence, process.pid, family, (tid, begin_ns, end_ns), asleep_ns, is_step),
        )
        sleeps.outside_ns[index] = gap.outside_ns
        sleeps.timer_ns[index], sleeps.timers[index] = gap.timer_ns, gap.timers
        sleeps.gil_ns += gap.gil_ns
        sleeps.outside += gap.outside
    return sleeps


def _gap(
    evidence: Evidence, pid: int, family: set[int], gap: tuple[int, int, int], asleep_ns: int, is_step: bool
) -> _Gap:
    """The sleeps in one gap. gap: thread, begin, end; is_step: it is part of a step by repetition, which has calls."""
    path = evidence.critical_paths.path(*gap, outside_gpu_calls=is_step)
    mine = [segment for segment in path if segment.pid == pid]
    asleep = [segment for segment in mine if segment.state == "sleep"]
    outside = [segment for segment in asleep if _may_be_request(segment, family)]
    timers = [segment for segment in asleep if segment.waker_kind == "timer" and segment.depth == 0]
    outside_ns = sum(segment.duration_ns for segment in outside)
    if 2 * outside_ns > sum(segment.duration_ns for segment in path if segment.state == "sleep"):
        # no work was requested before the last request came, whatever the thread that received it did
        asked_ns = max(one.end_ns for one in path if one.state == "sleep" and _may_be_request(one, family))
        answering_ns = sum(segment.duration_ns for segment in path if segment.begin_ns >= asked_ns)
        outside_ns = max(outside_ns, asleep_ns - answering_ns)
    return _Gap(
        outside_ns=outside_ns,
        timer_ns=_with_looks_ns(timers, gap[1]),
        timers=len(timers),
        gil_ns=sum(segment.duration_ns for segment in mine if segment.state == GIL),
        outside=tuple(outside),
    )


def _with_looks_ns(sleeps: Sequence[PathSegment], begin_ns: int) -> int:
    """The length of these sleeps; where they fill a gap from its begin on, with the looks for work between them."""
    slept_ns = sum(sleep.duration_ns for sleep in sleeps)
    until_ns = max((sleep.end_ns for sleep in sleeps), default=begin_ns)
    return until_ns - begin_ns if slept_ns >= _MOSTLY * (until_ns - begin_ns) else slept_ns


def _may_lack_demand(evidence: Evidence, process: Process) -> bool:
    """Whether the network, processes outside, or timers where they count, ended enough of the process's sleep."""
    family = evidence.family(process.process)
    slept = sum(
        one.sleep_ns
        for one in evidence.wakers(process.process)
        if is_outside_waker(one, family) or one.waker_kind == "timer"
    )
    return slept > _MIN_DEMAND_RATIO * evidence.window.duration_ns


def _serves(outside_ns: Array, sleeps: _Sleeps) -> bool:
    """Whether requests ended enough of the sleep."""
    requested = float(outside_ns.sum())
    return requested > _MIN_SERVED_SHARE * (requested + float(sleeps.timer_ns.sum()))


def _polls(sleeps: _Sleeps, sync_intervals: int) -> bool:
    """Whether timed sleeps are a loop that checks for work: their number per sync interval varies, or is large.

    A pause in a callback comes once in each step and is always as long, or the loop did without it before.
    """
    counts = sleeps.timers[sleeps.timers > 0]
    if not len(counts) or sleeps.gil_ns > _MAX_GIL_SHARE * sleeps.timer_ns.sum():
        return False
    if 2 * float(sleeps.timer_ns[sleeps.timers >= _MANY_LOOKS].sum()) > float(sleeps.timer_ns.sum()):
        return True
    if float((counts != np.median(counts)).mean()) > _IRREGULAR:
        return True
    return len(counts) >= _ALWAYS * sync_intervals and not _is_steady(sleeps.timer_ns[sleeps.timers > 0])


def _is_steady(asleep_ns: Array) -> bool:
    """Whether enough steps slept for the same time, so that the pause belongs to the step."""
    median = float(np.median(asleep_ns))
    noise_ns = float(np.median(np.abs(asleep_ns - median)))
    return len(asleep_ns) >= _MIN_PAUSES and noise_ns <= _MAX_PAUSE_NOISE * median


def is_outside_waker(waker: WakerTotals, family: set[int]) -> bool:
    """Whether this waker of a process is neither the process itself nor one of its workers."""
    return waker.waker_kind == "network" or (waker.waker_pid > 0 and waker.waker_pid not in family)


def _may_be_request(segment: PathSegment, family: set[int]) -> bool:
    """Whether a process outside ended this sleep, as far as is known by requesting something."""
    return is_outside(segment, family) and not segment.is_own_request and not segment.is_answer


def is_outside(segment: PathSegment, family: set[int]) -> bool:
    """Whether the network, or a thread outside the process and its workers, ended this sleep."""
    if segment.waker_kind == "thread":
        return segment.waker_pid > 0 and segment.waker_pid not in family
    return segment.waker_kind == "network"
