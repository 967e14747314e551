"""The host's own time in steps whose launches are not traced, as far as stack samples show it.

A thread on a full launch queue runs or sleeps in its launch, inside the CUDA driver. So where samples show a thread
outside the driver, the time is its own work or its own wait, and the rest bounds the wait for the GPU from above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.samples.stack_samples import (
    RUN,
    SLEEP,
    SampleGroup,
    group_samples,
    host_spans,
    may_launch,
    sleep_stacks,
)
from ingero.diagnose.steps.pacing import is_step, is_untimed, with_blocked
from ingero.events import STATES
from ingero.store.call_stacks import CallStack
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_RUN_SAMPLES = 20  # for a share of the time, with an error of a tenth of it
_RUN_CLOCK, _SLEEP_CLOCK = STATES.index("run"), STATES.index("sleep")


class _OwnShares(NamedTuple):
    """The shares, 0 to 1, of the launching threads' run and sleep time that were no wait for the GPU."""

    run: float
    sleep: float


def with_own_time(evidence: Evidence, process: int, windows: Sequence[Window], sync_intervals: Array) -> Array:
    """Whole sync intervals, with the wait for the GPU of steps without launch durations bounded by stack samples.

    windows: the time that they are of. Unchanged where samples are too few.
    """
    untimed = is_untimed(sync_intervals) & is_step(sync_intervals)
    if not untimed.any():
        return sync_intervals
    steps = sync_intervals[untimed]
    shares = _own_shares(evidence, process, windows, steps)
    if shares is None:
        return sync_intervals
    state_ns = steps["idle_state_ns"] + steps["launch_state_ns"]
    run_ns, sleep_ns = np.maximum(state_ns[:, _RUN_CLOCK], 0), np.maximum(state_ns[:, _SLEEP_CLOCK], 0)
    proven_ns = np.minimum(_own_sleep_ns(evidence, process, steps), sleep_ns)
    blocked_ns = np.zeros_like(state_ns)
    blocked_ns[:, _RUN_CLOCK] = run_ns * (1 - shares.run)
    blocked_ns[:, _SLEEP_CLOCK] = (sleep_ns - proven_ns) * (1 - shares.sleep)
    return with_blocked(sync_intervals, untimed, blocked_ns)


def own_run_share(evidence: Evidence, process: int, windows: Sequence[Window], sync_intervals: Array) -> float:
    """The share, 0 to 1, of the host's on-CPU time in sync intervals that is no launching; 0 with too few samples."""
    run = _run_samples(evidence, process, windows, sync_intervals)
    return _share(run, _computes) if run else 0.0


def _own_shares(evidence: Evidence, process: int, windows: Sequence[Window], steps: Array) -> _OwnShares | None:
    run = _run_samples(evidence, process, windows, steps)
    if not run:
        return None
    asleep = group_samples(evidence, process, windows, host_spans(steps), SLEEP)
    if evidence.launching(process).take_turns(steps):  # a sleep while another one launched counts as that one's time
        asleep = [group for group in asleep if not may_launch(group.stack)]
    is_unwound = any(group.stack and group.stack.native for group in run)
    return _OwnShares(
        run=_share(run, _is_interpreting if is_unwound else _computes), sleep=_share(asleep, _sleeps_outside)
    )


def _run_samples(
    evidence: Evidence, process: int, windows: Sequence[Window], sync_intervals: Array
) -> list[SampleGroup]:
    """Where the launching threads ran; empty with too few samples."""
    meanwhile = evidence.launching(process).spans(sync_intervals)
    found = [
        *group_samples(evidence, process, windows, host_spans(sync_intervals), RUN),
        *(group_samples(evidence, process, windows, meanwhile, RUN) if meanwhile else ()),
    ]
    return found if sum(group.count for group in found) >= _MIN_RUN_SAMPLES else []


def _share(groups: Sequence[SampleGroup], is_own: Callable[[CallStack], bool]) -> float:
    total = sum(group.ns for group in groups)
    return sum(group.ns for group in groups if group.stack and is_own(group.stack)) / max(total, 1)


def _own_sleep_ns(evidence: Evidence, process: int, steps: Array) -> Array:
    """The time of each step in sleeps outside launches, of those whose stacks were taken as they began."""
    found = np.zeros(len(steps), np.int64)
    order = np.argsort(steps["sync_end_ns"], kind="stable")
    sleeps = sleep_stacks(evidence, process, host_spans(steps))
    evidence.stacks.read(sleeps["stack_hash"].tolist())
    stacks = map(evidence.stacks.of, sleeps["stack_hash"].tolist())
    is_own = np.array([bool(stack and _sleeps_outside(stack)) for stack in stacks], bool)
    at = np.searchsorted(steps["sync_end_ns"][order], sleeps["time_ns"], side="right")
    is_own &= at < len(steps)
    np.add.at(found, order[at[is_own]], sleeps["weight_ns"][is_own])
    return found


def _computes(stack: CallStack) -> bool:
    """Whether a running thread was outside the GPU libraries, and in no code of a framework, which launches."""
    return _is_interpreting(stack) and (bool(stack.native) or not may_launch(stack))


def _is_interpreting(stack: CallStack) -> bool:
    """Whether a running thread was outside the GPU libraries; without native frames, where others have them, it was."""
    return bool(stack.python or stack.native) and not stack.note and not stack.is_in_gpu_library


def _sleeps_outside(stack: CallStack) -> bool:
    """Whether a sleeping thread was outside launches; its native frames are not known."""
    return bool(stack.python) and not may_launch(stack) and not stack.is_in_gpu_library
