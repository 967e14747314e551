"""The steps of each process: the sync intervals of the stream that paces it, or steps found by repetition of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingero.diagnose.profile.report import ProfileReport
from ingero.step_counts import How, StepCount
from ingero.store.arrays.gpu_streams import GpuStream
from ingero.units import format_counted

_MIN_LAUNCH_SHARE = 0.5  # of a process's launches, on a stream that paces it
_MIN_SYNCS_PER_STEP = 0.5  # unless intervals are short: one sync in a hundred steps ends no step
# Longer sync intervals would show a stall too late; steps that repay each other are judged together (run_ahead.py).
_MAX_INTERVAL_NS = 250_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSteps:
    """The steps of a process and how they are known; if `how` is SYNC, sync intervals that need not be steps.

    gpu_stream: what the process is judged by: its steps, or the sync intervals of the stream that paces it. None where
    a profiler measured the process.
    """

    how: How
    count: int
    gpu_stream: GpuStream | None

    @property
    def text(self) -> str:
        """Their number and kind as text: `2,076 steps found by repetition`."""
        return f"{format_counted(self.count, self.how.noun)} {self.how.words}".rstrip()


def process_steps(
    paced: Mapping[int, GpuStream], steps: Iterable[GpuStream], reports: Iterable[ProfileReport]
) -> dict[int, ProcessSteps]:
    """The steps of each process, by its number; the only source for texts that name or count steps.

    paced: of `pacing_streams`. steps: all steps by repetition. reports: of profiled processes.
    """
    repeated = {gpu_stream.process: gpu_stream for gpu_stream in steps}
    found = {process: _steps_of(gpu_stream, repeated.get(process)) for process, gpu_stream in paced.items()}
    for report in reports:
        if report.steps:  # all of one process are found in the same way
            how = How.of(report.steps[0].how)
            found[report.process.process] = ProcessSteps(how=how, count=len(report.steps), gpu_stream=None)
    return found


def _steps_of(gpu_stream: GpuStream, repeated: GpuStream | None) -> ProcessSteps:
    """The steps of a process; steps by repetition are counted even where sync intervals are what is judged."""
    steps = repeated.sync_intervals if repeated else gpu_stream.sync_intervals[:0]
    count = StepCount(
        steps=len(steps), synced=int((steps["syncs"] > 0).sum()), sync_intervals=len(gpu_stream.sync_intervals)
    )
    return ProcessSteps(how=count.how, count=count.count, gpu_stream=gpu_stream)


def pacing_streams(synced: Iterable[GpuStream], steps: Iterable[GpuStream]) -> dict[int, GpuStream]:
    """The stream that sets the pace of each process. synced: usable streams that can be judged (see `main_stream`).

    A stream whose syncs end the steps is preferred, because it shows exactly when the GPU was idle. A synced copy
    stream beside a compute stream shows nothing of the steps; where launches are not traced, it is the stream that is
    waited for less.
    """
    repeated: Mapping[int, GpuStream] = {gpu_stream.process: gpu_stream for gpu_stream in steps}
    found: dict[int, GpuStream] = dict(repeated)
    by_waits = sorted(synced, key=lambda gpu_stream: int(gpu_stream.sync_intervals["busy_ns"].sum()))
    longest = {gpu_stream.process: gpu_stream for gpu_stream in by_waits}
    for gpu_stream in by_waits:
        mine = repeated.get(gpu_stream.process)
        if mine is None or (
            _ends_steps(gpu_stream, mine) and (_launches(mine) or gpu_stream is longest[gpu_stream.process])
        ):
            found[gpu_stream.process] = gpu_stream
    return dict(sorted(found.items()))


def _launches(gpu_stream: GpuStream) -> int:
    """The number of traced launches on a stream."""
    return int(gpu_stream.sync_intervals["launches"].sum())


def _ends_steps(gpu_stream: GpuStream, steps: GpuStream) -> bool:
    """Whether a stream has most launches of the steps, and is synced in most steps or several times a second."""
    begin, end = int(steps.sync_intervals["prev_sync_end_ns"][0]), int(steps.sync_intervals["sync_end_ns"][-1])
    sync_intervals = gpu_stream.sync_intervals
    inside = sync_intervals[(sync_intervals["sync_end_ns"] > begin) & (sync_intervals["sync_end_ns"] <= end)]
    if inside["launches"].sum() < _MIN_LAUNCH_SHARE * steps.sync_intervals["launches"].sum():
        return False
    return len(inside) >= min(_MIN_SYNCS_PER_STEP * len(steps.sync_intervals), (end - begin) / _MAX_INTERVAL_NS)
