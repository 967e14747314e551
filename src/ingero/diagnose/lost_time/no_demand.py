"""Time without demand: the GPU is empty because nobody asked for anything. It is not lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ingero.diagnose.causes.host_code.polling_loops import polled_ns
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.lost_time.interval_sampling import sample_windows
from ingero.diagnose.offcpu.critical_path import GIL, Segment
from ingero.diagnose.samples.process_roles import data_workers, is_asking
from ingero.events import STATES
from ingero.store.records import Process, WakerTotals
from ingero.units import SECOND_NS

Array = np.ndarray[Any, np.dtype[Any]]

_SLEEP = STATES.index("sleep")
_WORTH_NS = 500_000  # shorter gaps are not asked about
_WORTH_A_LOOK = 0.01  # of a second; while recording, less is left where it is: it makes no incident
_SERVES = 0.05  # of the sleep with an empty device ends by somebody outside: the process serves requests
_FEW = 2_000  # gaps that are followed without asking first whether anybody outside ever woke the process
_ANY_DEMAND = 0.001  # of the window asleep until somebody outside ended it; less is no service
_ALWAYS = 0.95  # of the sync intervals with a sleep of its own: that is its pace
_IRREGULAR = 0.10  # of the sync intervals that sleep do so another number of times than most: it polls
_MANY = 100  # sync intervals that slept, before a pause that was always there belongs to the step
_ALIKE = 0.05  # MAD/median of those pauses
_INTERPRETER = 0.10  # waits for the interpreter lock beside sleeps of the same length: neither proves a poll


@dataclass(slots=True)
class _Sleeps:
    """Sleeps with an empty device of the syncing thread, per gap, by who ended them."""

    outside_ns: Array
    timer_ns: Array
    timers: Array
    gil_ns: int = 0
    outside: list[Segment] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gap:
    """The same of one gap; gil_ns: waits for the interpreter lock."""

    outside_ns: int
    timer_ns: int
    timers: int
    gil_ns: int
    outside: tuple[Segment, ...]


def shortened(sync_intervals: Array, idle: Array) -> Array:
    """The sync intervals (of either kind) without their time without demand: each begins when it was asked for
    something.

    Of its clocks that is sleep first; what is more was spent looking whether there is any.
    """
    if not idle.any():
        return sync_intervals
    result: Array = sync_intervals.copy()
    whole = idle.astype(np.int64)
    result["prev_sync_end_ns"] += whole
    result["idle_ns"] -= whole
    clocks = result["idle_state_ns"] if "idle_state_ns" in (result.dtype.names or ()) else None
    sleep = result["idle_sleep_ns"] if clocks is None else clocks[:, _SLEEP]
    awake_ns = whole - np.clip(sleep, 0, whole)
    sleep[:] = np.where(sleep > 0, np.maximum(sleep - whole, 0), sleep)
    if clocks is not None and awake_ns.any():
        others = np.arange(clocks.shape[1]) != _SLEEP
        total = np.maximum(clocks[:, others], 0).sum(axis=1)
        left = np.where(total > 0, np.maximum(total - awake_ns, 0) / np.maximum(total, 1), 1.0)
        clocks[:, others] = np.where(clocks[:, others] > 0, clocks[:, others] * left[:, None], clocks[:, others])
    return result


def idle_ns(evidence: Evidence, process: Process, gpu_stream: Array) -> Array:
    """Per sync interval, the sleep of the syncing thread that ended in somebody outside the process and its workers.

    Not so where the process trains or asks: then it waits for an answer. A sleep that a timer ends is idle where the
    process is seen to serve requests or to poll; so is the time in which it looks for work without ever sleeping. Of
    very many gaps a sample is followed; the rest is idle for the share of its sleep that the sample was.
    """
    polled: Array = polled_ns(evidence, process, gpu_stream)
    return np.maximum(_slept_ns(evidence, process, gpu_stream), polled)


def _slept_ns(evidence: Evidence, process: Process, gpu_stream: Array) -> Array:
    idle = np.zeros(len(gpu_stream))
    asleep = (gpu_stream["idle_sleep_ns"] < 0) | (gpu_stream["idle_sleep_ns"] > _WORTH_NS)
    gaps = np.flatnonzero((gpu_stream["idle_ns"] > _WORTH_NS) & asleep)
    if evidence.is_live:
        gaps = _worth_a_look(gpu_stream, gaps)
    if not len(gaps) or not evidence.has_offcpu:
        return idle
    if (len(gaps) > _FEW or evidence.is_live) and not _may_be_idle(evidence, process):
        return idle
    asked = _asked(gpu_stream, gaps)
    idle[asked] = _idle_of(evidence, process, _followed(evidence, process, gpu_stream, asked), len(gpu_stream))
    if len(asked) < len(gaps):
        rest = np.setdiff1d(gaps, asked, assume_unique=True)
        slept = np.maximum(gpu_stream["idle_sleep_ns"], 0)
        idle[rest] = slept[rest] * min(1.0, idle[asked].sum() / max(int(slept[asked].sum()), 1))
    result: Array = np.minimum(idle, gpu_stream["idle_ns"])
    return result


def _idle_of(evidence: Evidence, process: Process, found: _Sleeps, sync_intervals: int) -> Array:
    idle = np.zeros(len(found.outside_ns))
    if not (found.outside and is_asking(evidence, process, found.outside)):
        idle += found.outside_ns
    trains = bool(data_workers(evidence, process))  # it waits for them, however often it looks meanwhile
    if not trains and (_serves(idle, found) or _polls(found, sync_intervals)):
        idle += found.timer_ns
    return idle


def _worth_a_look(gpu_stream: Array, gaps: Array) -> Array:
    """Those of seconds with enough such sleep to matter."""
    slept = np.where(
        gpu_stream["idle_sleep_ns"][gaps] < 0, gpu_stream["idle_ns"][gaps], gpu_stream["idle_sleep_ns"][gaps]
    )
    _, second = np.unique(gpu_stream["sync_end_ns"][gaps] // SECOND_NS, return_inverse=True)
    worth: Array = gaps[np.bincount(second, weights=slept)[second] >= _WORTH_A_LOOK * SECOND_NS]
    return worth


def _asked(gpu_stream: Array, gaps: Array) -> Array:
    """The gaps that are followed: all of few."""
    windows = sample_windows(gpu_stream[gaps])
    ends = gpu_stream["sync_end_ns"][gaps]
    inside = np.zeros(len(gaps), bool)
    for window in windows:
        inside |= (ends >= window.begin_ns) & (ends < window.end_ns)
    chosen: Array = gaps[inside]
    return chosen


def _followed(evidence: Evidence, process: Process, gpu_stream: Array, asked: Array) -> _Sleeps:
    found = _Sleeps(np.zeros(len(asked)), np.zeros(len(asked)), np.zeros(len(asked)))
    family = evidence.family(process.process)
    is_step = evidence.main_streams[process.process].is_steps
    times = zip(
        *(
            gpu_stream[name][asked].tolist()
            for name in ("prev_sync_tid", "prev_sync_end_ns", "first_launch_ns", "idle_sleep_ns")
        ),
        strict=True,
    )
    for index, (tid, begin_ns, end_ns, asleep_ns) in enumerate(times):
        gap = evidence.of_paths(
            (process.process, len(family), tid, begin_ns),
            end_ns,
            partial(_gap, evidence, process.pid, family, (tid, begin_ns, end_ns), asleep_ns, is_step),
        )
        found.outside_ns[index], found.timer_ns[index], found.timers[index] = gap.outside_ns, gap.timer_ns, gap.timers
        found.gil_ns += gap.gil_ns
        found.outside += gap.outside
    return found


def _gap(
    evidence: Evidence, pid: int, family: set[int], gap: tuple[int, int, int], asleep_ns: int, is_step: bool
) -> _Gap:
    """gap: thread, begin and end; is_step: of a step by repetition, in which it was in calls as well."""
    path = evidence.waits.path(*gap, outside_gpu_calls=is_step)
    mine = [one for one in path if one.pid == pid]
    asleep = [one for one in mine if one.state == "sleep"]
    outside = [one for one in asleep if _may_be_question(one, family)]
    timers = [one for one in asleep if one.waker_kind == "timer" and one.depth == 0]
    outside_ns = sum(one.duration_ns for one in outside)
    if 2 * outside_ns > sum(one.duration_ns for one in path if one.state == "sleep"):
        # nobody had asked before the last question came, whatever the thread did that took it
        asked_ns = max(one.end_ns for one in path if one.state == "sleep" and _may_be_question(one, family))
        answering_ns = sum(one.duration_ns for one in path if one.begin_ns >= asked_ns)
        outside_ns = max(outside_ns, asleep_ns - answering_ns)
    return _Gap(
        outside_ns=outside_ns,
        timer_ns=sum(one.duration_ns for one in timers),
        timers=len(timers),
        gil_ns=sum(one.duration_ns for one in mine if one.state == GIL),
        outside=tuple(outside),
    )


def _may_be_idle(evidence: Evidence, process: Process) -> bool:
    """Whether sleeps of the process were ended by the network, by timers or by other processes, to an extent."""
    family = evidence.family(process.process)
    slept = sum(
        one.sleep_ns
        for one in evidence.wakers(process.process)
        if one.waker_kind in {"network", "timer"} or (one.waker_pid > 0 and one.waker_pid not in family)
    )
    return slept > _ANY_DEMAND * evidence.window.duration_ns


def _serves(outside_ns: Array, found: _Sleeps) -> bool:
    """Whether enough of its sleep ended by a request."""
    asked = float(outside_ns.sum())
    return asked > _SERVES * (asked + float(found.timer_ns.sum()))


def _polls(found: _Sleeps, sync_intervals: int) -> bool:
    """Whether its own sleeps are a loop that looks for work: now none, now one, now many before the next sync interval.

    A pause in a callback comes once in each step, as long as ever, or the loop has done without it before.
    """
    counts = found.timers[found.timers > 0]
    if not len(counts) or found.gil_ns > _INTERPRETER * found.timer_ns.sum():
        return False
    if float((counts != np.median(counts)).mean()) > _IRREGULAR:
        return True
    return len(counts) >= _ALWAYS * sync_intervals and not _is_steady(found.timer_ns[found.timers > 0])


def _is_steady(asleep_ns: Array) -> bool:
    """Whether enough steps slept alike to say that the pause belongs to the step."""
    median = float(np.median(asleep_ns))
    return len(asleep_ns) >= _MANY and float(np.median(np.abs(asleep_ns - median))) <= _ALIKE * median


def is_outside_waker(one: WakerTotals, family: set[int]) -> bool:
    """Whether who ended sleeps of a process is neither it nor one of its workers."""
    return one.waker_kind == "network" or (one.waker_pid > 0 and one.waker_pid not in family)


def _may_be_question(one: Segment, family: set[int]) -> bool:
    """Whether somebody outside ended this sleep, and by asking for something as far as can be seen."""
    return is_outside(one, family) and not one.is_own_request


def is_outside(one: Segment, family: set[int]) -> bool:
    """Whether somebody outside the process and its workers ended this sleep."""
    if one.waker_kind == "thread":
        return one.waker_pid > 0 and one.waker_pid not in family
    return one.waker_kind == "network"
