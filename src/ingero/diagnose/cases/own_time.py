"""The host's own time in steps whose launches are not traced, as far as stack samples show it.

A thread on a full launch queue runs or sleeps in its launch, inside the CUDA driver. So where samples show a thread
outside the driver, the time is its own work or its own wait, and the rest bounds the wait for the GPU from above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.samples.stack_samples import (
    MIN_SAMPLES,
    RUN,
    SLEEP,
    SampleGroup,
    group_samples,
    host_spans,
    may_launch,
)
from ingero.diagnose.steps.pacing import is_step, is_untimed, with_blocked
from ingero.events import STATES
from ingero.store.arrays.arrays import OFFCPU_DTYPE
from ingero.store.call_stacks import CallStack
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_RUN_SAMPLES = 20  # for a share of the time, with an error of a tenth of it
_LOOK_BACK_NS = 10_000_000_000  # whose samples and sleeps are read, in each pass of a live diagnosis
_SIGMAS = 2  # standard errors by which a share may be too large
_RUN_CLOCK, _SLEEP_CLOCK = STATES.index("run"), STATES.index("sleep")


def with_own_time(evidence: Evidence, process: int, windows: Sequence[Window], sync_intervals: Array) -> Array | None:
    """Whole sync intervals, with the wait for the GPU of steps without launch durations bounded by stack samples.

    windows: the time that they are of. None where samples are too few; the same intervals where nothing is to be done.
    """
    untimed = is_untimed(sync_intervals) & is_step(sync_intervals)
    if not untimed.any():
        return sync_intervals
    steps = sync_intervals[untimed]
    seen = steps["sync_end_ns"] > steps["sync_end_ns"].max() - _LOOK_BACK_NS
    run = _run_samples(evidence, process, windows, steps[seen])
    outside, count = _known_share(run, lambda stack: not stack.is_in_gpu_library)
    if count < _MIN_RUN_SAMPLES:
        return None
    state_ns = steps["idle_state_ns"] + steps["launch_state_ns"]
    run_ns, sleep_ns = np.maximum(state_ns[:, _RUN_CLOCK], 0), np.maximum(state_ns[:, _SLEEP_CLOCK], 0)
    own_sleep_ns = np.zeros(len(steps))
    own_sleep_ns[seen] = _own_sleep_ns(evidence, process, steps[seen], sleep_ns[seen])
    own_sleep_ns[~seen] = sleep_ns[~seen] * own_sleep_ns.sum() / max(float(sleep_ns[seen].sum()), 1.0)
    blocked_ns = np.zeros_like(state_ns)
    blocked_ns[:, _RUN_CLOCK] = run_ns * (1 - outside)
    blocked_ns[:, _SLEEP_CLOCK] = sleep_ns - own_sleep_ns
    return with_blocked(sync_intervals, untimed, blocked_ns)


def own_run_share(evidence: Evidence, process: int, windows: Sequence[Window], sync_intervals: Array) -> float:
    """The least share, 0 to 1, of the host's on-CPU time in sync intervals that is no launching; 0 where not known."""
    run = _run_samples(evidence, process, windows, sync_intervals)
    share, count = _known_share(run, lambda stack: not stack.is_in_gpu_library and not may_launch(stack))
    return max(share - _SIGMAS * math.sqrt(share * (1 - share) / count), 0.0) if count >= _MIN_RUN_SAMPLES else 0.0


def _run_samples(
    evidence: Evidence, process: int, windows: Sequence[Window], sync_intervals: Array
) -> list[SampleGroup]:
    """Where the launching threads ran."""
    meanwhile = evidence.launching(process).spans(sync_intervals)
    return [
        *group_samples(evidence, process, windows, host_spans(sync_intervals), RUN),
        *(group_samples(evidence, process, windows, meanwhile, RUN) if meanwhile else ()),
    ]


def _known_share(groups: Sequence[SampleGroup], matches: Callable[[CallStack], bool]) -> tuple[float, int]:
    """The share of the samples' time that is known to match, 0 to 1, and the number of samples.

    Not every native stack is copied: a sample without may be anywhere in a library, so that it matches nothing.
    """
    matching_ns = sum(
        group.ns for group in groups if group.stack and group.stack.is_native_known and matches(group.stack)
    )
    return matching_ns / max(sum(group.ns for group in groups), 1), sum(group.count for group in groups)


def _own_sleep_ns(evidence: Evidence, process: int, steps: Array, sleep_ns: Array) -> Array:
    """The part of each step's sleep that was outside launches, ns.

    Where a sleep's stack was taken neither as it began nor later, sleeps that the same kind of waker ended tell which
    part of it to expect. Left out are waits for a launching thread, which are inside the framework.
    """
    order = np.argsort(steps["sync_end_ns"], kind="stable")
    begins_ns, ends_ns = steps["prev_sync_end_ns"][order], steps["sync_end_ns"][order]
    rows = _sleeps(evidence, process, steps, Window(begin_ns=int(begins_ns[0]), end_ns=int(ends_ns[-1]) + 1))
    at = np.searchsorted(ends_ns, rows["start_ns"], side="right")
    is_inside = at < len(steps)
    is_inside[is_inside] = begins_ns[at[is_inside]] <= rows["start_ns"][is_inside]
    rows, at = rows[is_inside], at[is_inside]
    length_ns = np.clip(np.minimum(_sleep_ends(rows), ends_ns[at]) - rows["start_ns"], 0, None)
    evidence.stacks.read(np.unique(rows["stack_hash"]).tolist())
    stacks = map(evidence.stacks.of, rows["stack_hash"].tolist())
    own = np.array([float(stack is not None and _sleeps_outside(stack)) for stack in stacks])
    is_known = rows["stack_hash"] != 0
    for kind in np.unique(rows["waker_kind"][~is_known]).tolist():
        mine = rows["waker_kind"] == kind
        known_ns = float(length_ns[mine & is_known].sum())
        if known_ns and (mine & is_known).sum() >= MIN_SAMPLES:
            own[mine & ~is_known] = float((own * length_ns)[mine & is_known].sum()) / known_ns
    found = np.zeros(len(steps))
    np.add.at(found, order[at], own * length_ns)
    return np.minimum(found, sleep_ns)


def _sleeps(evidence: Evidence, process: int, steps: Array, window: Window) -> Array:
    """The sleeps of the threads of these steps outside calls that may wait for the GPU (`OFFCPU_DTYPE`).

    A stack that was read while a thread slept is where it went to sleep.
    """
    rows = evidence.offcpu_in(window) if evidence.has_offcpu else np.zeros(0, OFFCPU_DTYPE)
    tids = np.unique([steps[name] for name in ("prev_sync_tid", "first_launch_tid")])
    threads = list(evidence.launching(process).threads)
    found: Array = rows[
        (rows["process"] == process)
        & np.isin(rows["tid"], tids)
        & (rows["state"] == SLEEP)
        & (rows["is_gpu_call"] == 0)
        & ~np.isin(rows["waker_tid"], threads)
    ].copy()
    samples = evidence.samples((window,), process)
    samples = samples[(samples["state"] == SLEEP) & (samples["stack_hash"] != 0)]
    for tid in tids.tolist():
        mine = np.flatnonzero((found["tid"] == tid) & (found["stack_hash"] == 0))
        seen = np.sort(samples[samples["tid"] == tid], order="time_ns")
        at = np.searchsorted(seen["time_ns"], found["start_ns"][mine])
        is_within = at < len(seen)
        is_within[is_within] = seen["time_ns"][at[is_within]] < _sleep_ends(found[mine[is_within]])
        found["stack_hash"][mine[is_within]] = seen["stack_hash"][at[is_within]]
    return found


def _sleep_ends(rows: Array) -> Array:
    """When each sleep ended: where the waking is known, before the wait for a CPU that followed, ns."""
    ends_ns = rows["start_ns"] + rows["duration_ns"]
    found: Array = np.where(rows["woken_ns"] > 0, np.clip(rows["woken_ns"], rows["start_ns"], ends_ns), ends_ns)
    return found


def _sleeps_outside(stack: CallStack) -> bool:
    """Whether a sleeping thread was outside launches; its native frames are not known."""
    return bool(stack.python) and not may_launch(stack) and not stack.is_in_gpu_library
