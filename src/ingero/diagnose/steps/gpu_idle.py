"""For how long the GPU had nothing of a process queued: at least, at most, and what proves it.

At least: from when a stream was done until the next launch on it, as sync intervals have both. At most: all but what
marks of progress, waits for the stream or NVML prove to be busy.
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
from ingero.diagnose.steps.queue_depth import was_full
from ingero.events import SyncIntervalFlag
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.store.records import Process, Window

Array = np.ndarray[Any, np.dtype[Any]]

MIN_BUSY = 0.50  # of the time proven busy, before "at most" alone says anything: a host-bound program hardly ever waits
SAME = 0.01  # bounds that differ by less are one figure
_SHOWN = 0.005  # of the time; a bound that is no further from "never" or "always" is not worth a word

_SYNCS, _MARKS, _NVML = "sync intervals", "progress marks", "NVML"
_UNKNOWN = int(SyncIntervalFlag.FIRST_UNKNOWN | SyncIntervalFlag.COVERAGE_CHANGED | SyncIntervalFlag.ENQUEUES_UNSEEN)
_PARTIAL, _ESTIMATED = int(SyncIntervalFlag.PARTIAL), int(SyncIntervalFlag.ESTIMATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdle:
    """Shares of some time, 0 to 1, in which the GPU had nothing of a process queued, with what they are known by.

    low: 0 where nothing is proven; high: 1 where nothing is.
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
        """What is known of it, and by what; empty where that is nothing."""
        has_low = self.low >= _SHOWN
        has_high = self.high <= 1 - (_SHOWN if has_low else MIN_BUSY)
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
    """Of a process's main stream, from the first to the last of the intervals that the process is judged by; kept."""
    number = process.process
    if number not in evidence.gpu_idle:
        evidence.gpu_idle[number] = _gpu_idle(evidence, process)
    return evidence.gpu_idle[number]


def _gpu_idle(evidence: Evidence, process: Process) -> GpuIdle:
    main, judged = evidence.main_streams[process.process], evidence.gpu_streams[process.process]
    window = Window(begin_ns=int(judged["prev_sync_end_ns"].min()), end_ns=int(judged["sync_end_ns"].max()))
    same = (gpu_stream for gpu_stream in evidence.synced_streams if gpu_stream.process == process.process)
    gpu_streams = [gpu_stream for gpu_stream in same if gpu_stream.device == main.device]
    mine = [gpu_stream for gpu_stream in gpu_streams if gpu_stream.stream == main.stream]
    length = max(window.duration_ns, 1)
    idle_ns = _idle_ns(mine, [gpu_stream for gpu_stream in gpu_streams if gpu_stream.stream != main.stream], window)
    highs = [(1 - _waited_ns(mine, window) / length, _SYNCS)]
    if main.is_steps:  # of a stream that is synced in each step marks say no more than its sync intervals
        marks = evidence.reader.progress_marks(window, process=process.process)
        marks = marks[(marks["stream"] == main.stream) & (marks["device"] == main.device)]
        highs.append((1 - queued_ns(marks) / length, _MARKS))
    utilization = utilization_of(evidence, process, main.device, (window,))
    if utilization and utilization.is_alone:
        highs.append((1 - utilization.share + utilization.error, _NVML))
    high, high_from = min(highs, key=lambda one: one[0])
    low = idle_ns / length
    # both are true to within what a clock differs, and NVML's to within its error
    return GpuIdle(low=low, high=min(max(high, low), 1.0), low_from=_SYNCS, high_from=high_from)


def _idle_ns(mine: Iterable[GpuStream], others: Iterable[GpuStream], window: Window) -> int:
    """From when a stream was done, and no other stream had work that nobody waited for, until its next launch.

    Less what other streams, as far as they are synced themselves, had queued meanwhile.
    """
    begins, ends = _joined(part for gpu_stream in mine for part in _empty(gpu_stream.sync_intervals))
    idle = _clipped(begins, ends, window)
    busy = united(
        *_joined(
            (gpu_stream.sync_intervals["first_launch_ns"], gpu_stream.sync_intervals["gpu_done_ns"])
            for gpu_stream in others
        )
    )
    return idle.total_ns - int(busy.between(idle.begins, idle.ends).sum())


def _empty(sync_intervals: Array) -> Iterator[tuple[Array, Array]]:
    """When a stream was empty: from the return of a sync to the next launch, and from "done" to the return.

    Where another stream has work that nobody waited for, at either end, the GPU need not have been idle.
    """
    sure = ((sync_intervals["flags"] & _UNKNOWN) == 0) & ((sync_intervals["flags"] & _PARTIAL) == 0)
    follows = np.zeros(len(sync_intervals), bool)
    follows[1:] = sure[1:] & sure[:-1] & (sync_intervals["prev_sync_end_ns"][1:] == sync_intervals["sync_end_ns"][:-1])
    yield sync_intervals["prev_sync_end_ns"][follows], sync_intervals["first_launch_ns"][follows]
    done = sure & ((sync_intervals["flags"] & _ESTIMATED) == 0)
    yield sync_intervals["gpu_done_ns"][done], sync_intervals["sync_end_ns"][done]


def _waited_ns(mine: Iterable[GpuStream], window: Window) -> int:
    """When a thread waited for the stream that was not done, or launched onto its full queue."""
    begins, ends = [], []
    for gpu_stream in mine:
        sure = gpu_stream.sync_intervals[(gpu_stream.sync_intervals["flags"] & (_UNKNOWN | _ESTIMATED)) == 0]
        begins.append(np.where(was_full(sure), sure["first_launch_ns"], sure["sync_start_ns"]))
        ends.append(sure["gpu_done_ns"])
    return _clipped(*_joined(zip(begins, ends, strict=True)), window).total_ns


def _joined(parts: Iterable[tuple[Array, Array]]) -> tuple[Array, Array]:
    parts = list(parts)
    if not parts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begins, ends = zip(*parts, strict=True)
    return np.concatenate(begins), np.concatenate(ends)


def _clipped(begins: Array, ends: Array, window: Window) -> Intervals:
    return united(np.maximum(begins, window.begin_ns), np.minimum(ends, window.end_ns))


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.0f}" if ratio >= 0.0995 else f"{100 * ratio:.1f}"
