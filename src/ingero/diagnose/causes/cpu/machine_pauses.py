"""Pauses of the whole machine: its hypervisor, or its firmware, lets none of it run for some milliseconds.

No clock of a thread shows one: who ran seems to have run on, who slept to have slept. But timers of the kernel that
were due meanwhile come as it ends (`late_timer`), and so does the interrupt of a device that was ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.ops import HostOp, Source
from ingero.store.arrays.spans import Spans
from ingero.store.records import Window

Array = np.ndarray[Any, np.dtype[Any]]

_AT_ONCE_NS = 1_000_000  # what is held up by a pause comes as it ends, in the order that CPUs and timers are served


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """count, longest_ns: of pauses meanwhile, as far as timers were due in them. share: of the lost time, at most."""

    count: int
    longest_ns: int
    share: float


def paused(case: Case) -> Paused | None:
    """None where no timer was late while time was lost."""
    late = [one for one in case.evidence.host_events(case.window, Source.HOST) if one.op == HostOp.LATE_TIMER]
    each = [Window(begin_ns=one.start_ns, end_ns=one.start_ns + (one.duration_ns or 0)) for one in late]
    spans = Spans(each)
    mine = [one for one in spans.windows if one.end_ns > case.window.begin_ns]
    if not mine or not len(case.sync_intervals):
        return None
    lost = np.maximum(case.excess_ns, 0)
    ends_a_wait = _ends_a_wait(case.sync_intervals, np.sort([one.end_ns for one in each]))
    claimed = np.where(ends_a_wait, lost, np.minimum(lost, _while_at_work_ns(case.sync_intervals, spans)))
    return Paused(
        count=len(mine),
        longest_ns=max(one.duration_ns for one in mine),
        share=float(claimed.sum()) / max(float(lost.sum()), 1.0),
    )


def _ends_a_wait(sync_intervals: Array, ends: Array) -> Array:
    """Sync intervals whose device was seen to be ready just as a pause ended, which is then why it was no sooner.

    ends: of the late timers, in order; of one pause they come within a millisecond or two, each CPU's in its turn.
    """
    after = np.minimum(np.searchsorted(ends, sync_intervals["gpu_done_ns"] - _AT_ONCE_NS), len(ends) - 1)
    ended: Array = (np.abs(sync_intervals["gpu_done_ns"] - ends[after]) <= _AT_ONCE_NS) & (
        ends[after] > sync_intervals["sync_start_ns"]
    )
    return ended


def _while_at_work_ns(sync_intervals: Array, spans: Spans) -> Array:
    """How long each sync interval was held up outside its wait for the GPU."""
    parts = (("prev_sync_end_ns", "sync_start_ns"), ("gpu_done_ns", "sync_end_ns"))
    held = [
        spans.shares(sync_intervals[begin], sync_intervals[end]) * (sync_intervals[end] - sync_intervals[begin])
        for begin, end in parts
    ]
    total: Array = held[0] + held[1]
    return total
