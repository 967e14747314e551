"""Pauses of the whole host: the hypervisor, or firmware (SMI), stops all CPUs for some milliseconds.

Thread-state times do not show a pause: running threads seem to have run, sleeping ones to have slept. But kernel timers
that were due meanwhile fire when it ends (`late_timer`), and so does a pending GPU interrupt.
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

# delayed timers and interrupts follow the end of a pause within this time, one CPU after another
_MAX_AFTER_PAUSE_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePauses:
    """Pauses of the host while time was lost.

    count, longest_ns: as far as timers were due in them. share: of the lost time, at most.
    """

    count: int
    longest_ns: int
    share: float


def find_machine_pauses(case: Case) -> MachinePauses | None:
    """The pauses of the host during a case; None where no timer was late."""
    late_timers = [
        event for event in case.evidence.host_events(case.window, Source.HOST) if event.op == HostOp.LATE_TIMER
    ]
    delays = [
        Window(begin_ns=timer.start_ns, end_ns=timer.start_ns + (timer.duration_ns or 0)) for timer in late_timers
    ]
    spans = Spans(delays)
    pauses = [pause for pause in spans.windows if pause.end_ns > case.window.begin_ns]
    if not pauses or not len(case.sync_intervals):
        return None
    lost = np.maximum(case.excess_ns, 0)
    is_ended_by_pause = _has_wait_ended_by_pause(case.sync_intervals, np.sort([window.end_ns for window in delays]))
    claimed = np.where(is_ended_by_pause, lost, np.minimum(lost, _paused_outside_wait_ns(case.sync_intervals, spans)))
    return MachinePauses(
        count=len(pauses),
        longest_ns=max(pause.duration_ns for pause in pauses),
        share=float(claimed.sum()) / max(float(lost.sum()), 1.0),
    )


def _has_wait_ended_by_pause(sync_intervals: Array, ends: Array) -> Array:
    """Sync intervals whose GPU was done just as a pause ended, which may therefore have been done earlier.

    ends: ends of the late timers, ascending; those of one pause come within a millisecond or two.
    """
    after = np.minimum(np.searchsorted(ends, sync_intervals["gpu_done_ns"] - _MAX_AFTER_PAUSE_NS), len(ends) - 1)
    ended: Array = (np.abs(sync_intervals["gpu_done_ns"] - ends[after]) <= _MAX_AFTER_PAUSE_NS) & (
        ends[after] > sync_intervals["sync_start_ns"]
    )
    return ended


def _paused_outside_wait_ns(sync_intervals: Array, spans: Spans) -> Array:
    """How long each sync interval was paused outside its wait for the GPU."""
    parts = (("prev_sync_end_ns", "sync_start_ns"), ("gpu_done_ns", "sync_end_ns"))
    paused_ns = [
        spans.shares(sync_intervals[begin], sync_intervals[end]) * (sync_intervals[end] - sync_intervals[begin])
        for begin, end in parts
    ]
    total: Array = paused_ns[0] + paused_ns[1]
    return total
