"""Bounds of the time in which the GPU had no work of a process queued, and what proves each bound.

Lower bound: from when a stream was done until the next launch on it, which sync intervals hold. Upper bound: all time
but what progress marks, waits for the stream or NVML prove to be busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.nvml_utilization import utilization_of
from ingero.diagnose.profile.intervals import Intervals, united
from ingero.diagnose.steps.progress_bounds import queued_ns
from ingero.diagnose.steps.queue_depth import was_queue_full
from ingero.events import SyncIntervalFlag
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.records import Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

# Of the time proven busy, before the upper bound alone is shown: a host-bound program hardly ever waits.
MIN_BUSY = 0.50
SAME = 0.01  # bounds that differ by less are one figure
_MIN_SHOWN = 0.005  # of the time; a bound closer to "never" or "always" is not shown

_SYNCS, _MARKS, _NVML = "sync intervals", "progress marks", "NVML"
_UNKNOWN = int(SyncIntervalFlag.FIRST_UNKNOWN | SyncIntervalFlag.COVERAGE_CHANGED | SyncIntervalFlag.ENQUEUES_UNSEEN)
_PARTIAL, _ESTIMATED = int(SyncIntervalFlag.PARTIAL), int(SyncIntervalFlag.ESTIMATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdle:
    """Bounds of the share of time, 0 to 1, in which the GPU had no work of a process queued, each with its source.

    low: 0 where none is proven; high: 1 where none is proven.
    """

    low: float
    high: float
    low_from: str
    high_from: str

    @property
    def is_exact(self) -> bool:
        """Whether both bounds are one figure."""
        return self.high - self.low <= SAME

    @property
    def words(self) -> str:
        """The bounds with their sources as text; empty where nothing is known."""
        has_low = self.low >= _MIN_SHOWN
        has_high = self.high <= 1 - (_MIN_SHOWN if has_low else MIN_BUSY)
        if has_low and has_high:
            if self.is_exact:
                return f"GPU idle {_percent(self.low)}% of the time (by {self.low_from})"
            sources = f"at least by {self.low_from}, at most by {self.high_from}"
            sources = f"by {self.low_from}" if self.low_from == self.high_from else sources
            return f"GPU idle between {_percent(self.low)} and {_percent(self.high)}% of the time ({sources})"
        if has_high:
            return f"GPU idle at most {_percent(self.high)}% of the time (by {self.high_from})"
        if has_low:
            return f"GPU idle at least {_percent(self.low)}% of the time (by {self.low_from})"
        return ""


def gpu_idle(evidence: Evidence, process: Process) -> GpuIdle:
    """GPU idle of a process's main stream, from its first to its last interval; `evidence` keeps the answer."""
    number = process.process
    if number not in evidence.gpu_idle:
        evidence.gpu_idle[number] = _gpu_idle(evidence, process)
    return evidence.gpu_idle[number]


def _gpu_idle(evidence: Evidence, process: Process) -> GpuIdle:
    main, judged = evidence.main_streams[process.process], evidence.gpu_streams[process.process]
    window = Window(begin_ns=int(judged["prev_sync_end_ns"].min()), end_ns=int(judged["sync_end_ns"].max()))
    own = (gpu_stream for gpu_stream in evidence.synced_streams if gpu_stream.process == process.process)
    gpu_streams = [gpu_stream for gpu_stream in own if gpu_stream.device == main.device]
    mine = [gpu_stream for gpu_stream in gpu_streams if gpu_stream.stream == main.stream]
    length = max(window.duration_ns, 1)
    idle_ns = _idle_ns(mine, [gpu_stream for gpu_stream in gpu_streams if gpu_stream.stream != main.stream], window)
    highs = [(1 - _waited_ns(mine, window) / length, _SYNCS)]
    if main.is_steps:  # for a stream that is synced in each step, marks add nothing to its sync intervals
        marks = evidence.reader.progress_marks(window, process=process.process)
        marks = marks[(marks["stream"] == main.stream) & (marks["device"] == main.device)]
        highs.append((1 - queued_ns(marks) / length, _MARKS))
    utilization = utilization_of(evidence, process, main.device, (window,))
    if utilization and utilization.is_alone:
        highs.append((1 - utilization.share + utilization.error, _NVML))
    high, high_from = min(highs, key=lambda bound: bound[0])
    low = idle_ns / length
    # both are exact to within the difference of clocks, and NVML's to within its error
    return GpuIdle(low=low, high=min(max(high, low), 1.0), low_from=_SYNCS, high_from=high_from)


def _idle_ns(mine: Iterable[GpuStream], others: Iterable[GpuStream], window: Window) -> int:
    """Time from when a stream was done until its next launch, ns, less the time of work queued on other streams.

    Only streams that are synced themselves count as other streams; see `_empty` for work that is not waited for.
    """
    begins, ends = _concatenated(part for gpu_stream in mine for part in _empty(gpu_stream.sync_intervals))
    idle = _clipped(begins, ends, window)
    busy = united(
        *_concatenated(
            (gpu_stream.sync_intervals["first_launch_ns"], gpu_stream.sync_intervals["gpu_done_ns"])
            for gpu_stream in others
        )
    )
    return idle.total_ns - int(busy.between(idle.begins, idle.ends).sum())


def _empty(sync_intervals: Array) -> Iterator[tuple[Array, Array]]:
    """When a stream had no work: from the return of a sync to the next launch, and from GPU done to that return.

    Intervals that begin or end while another stream has work that is not waited for are left out: the GPU may have
    been busy.
    """
    sure = ((sync_intervals["flags"] & _UNKNOWN) == 0) & ((sync_intervals["flags"] & _PARTIAL) == 0)
    follows = np.zeros(len(sync_intervals), bool)
    follows[1:] = sure[1:] & sure[:-1] & (sync_intervals["prev_sync_end_ns"][1:] == sync_intervals["sync_end_ns"][:-1])
    yield sync_intervals["prev_sync_end_ns"][follows], sync_intervals["first_launch_ns"][follows]
    done = sure & ((sync_intervals["flags"] & _ESTIMATED) == 0)
    yield sync_intervals["gpu_done_ns"][done], sync_intervals["sync_end_ns"][done]


def _waited_ns(mine: Iterable[GpuStream], window: Window) -> int:
    """Time in which a thread waited for the stream while it had work, or launched onto its full queue, ns."""
    begins, ends = [], []
    for gpu_stream in mine:
        sure = gpu_stream.sync_intervals[(gpu_stream.sync_intervals["flags"] & (_UNKNOWN | _ESTIMATED)) == 0]
        begins.append(np.where(was_queue_full(sure), sure["first_launch_ns"], sure["sync_start_ns"]))
        ends.append(sure["gpu_done_ns"])
    return _clipped(*_concatenated(zip(begins, ends, strict=True)), window).total_ns


def _concatenated(parts: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    parts = list(parts)
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begins, ends = zip(*parts, strict=True)
    return np.concatenate(begins), np.concatenate(ends)


def _clipped(begins: Array, ends: Array, window: Window) -> Intervals:
    return united(np.maximum(begins, window.begin_ns), np.minimum(ends, window.end_ns))


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f}" if ratio >= 0.0995 else f"{100 * ratio:.1f}"
