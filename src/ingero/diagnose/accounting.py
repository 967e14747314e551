"""Time breakdown of a stream: GPU idle, GPU busy and sync return delay, with the states of the critical-path thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero.events import STATES, SyncIntervalFlag
from ingero.store.arrays.gpu_streams import GpuStreamSums

Array = np.ndarray[Any, np.dtype[Any]]
_NOT_RECORDED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartBreakdown:
    """One part of the sync intervals: its length, and the critical-path thread's time by state (order of STATES).

    unknown_ns: the time of the part without recorded thread states.
    """

    total_ns: int
    states_ns: tuple[int, ...]
    unknown_ns: int

    def in_state(self, name: str) -> int:
        """The time in one thread state, ns."""
        return self.states_ns[STATES.index(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBreakdown:
    """The sync intervals of one stream, summed: wall = idle + busy + return delay, to the nanosecond.

    idle: nothing was queued. busy: from the first launch until the GPU was done, of which `launching` until the sync
    began. return_delay: the GPU was done but the sync had not returned; return_delay_low_ns and return_delay_high_ns
    are its bounds where a thread was descheduled while it polled.
    """

    process: int
    pid: int
    device: int
    stream: int
    sync_intervals: int
    incomplete: int
    launches: int
    size_bytes: int
    wall_ns: int
    idle: PartBreakdown
    busy_ns: int
    launching: PartBreakdown
    return_delay_ns: int
    return_delay_low_ns: int
    return_delay_high_ns: int
    sync: PartBreakdown


def stream_breakdowns(sync_intervals: Array) -> list[StreamBreakdown]:
    """One breakdown per stream (process, device, stream), the one with the most GPU work first."""
    if not len(sync_intervals):
        return []
    keys = sync_intervals[["process", "device", "stream"]]
    breakdowns = [_breakdown(sync_intervals[keys == key]) for key in np.unique(keys)]
    return sorted(breakdowns, key=lambda breakdown: -breakdown.busy_ns)


def breakdowns_of_sums(gpu_streams: Iterable[GpuStreamSums]) -> list[StreamBreakdown]:
    """One breakdown per stream from sums kept during the recording, the one with the most GPU work first."""
    breakdowns = [
        StreamBreakdown(
            process=gpu_stream.process,
            pid=gpu_stream.pid,
            device=gpu_stream.device,
            stream=gpu_stream.stream,
            sync_intervals=gpu_stream.sums["sync_intervals"],
            incomplete=gpu_stream.sums["incomplete"],
            launches=gpu_stream.sums["launches"],
            size_bytes=gpu_stream.sums["bytes"],
            wall_ns=gpu_stream.sums["wall_ns"],
            idle=_summed(gpu_stream, 0, "idle"),
            busy_ns=gpu_stream.sums["busy_ns"],
            launching=_summed(gpu_stream, 1, "launch"),
            return_delay_ns=gpu_stream.sums["return_delay_ns"],
            return_delay_low_ns=gpu_stream.sums["return_delay_low_ns"],
            return_delay_high_ns=gpu_stream.sums["return_delay_high_ns"],
            sync=_summed(gpu_stream, 2, "sync"),
        )
        for gpu_stream in gpu_streams
    ]
    return sorted(breakdowns, key=lambda breakdown: -breakdown.busy_ns)


def main_stream(breakdowns: list[StreamBreakdown], process: int) -> StreamBreakdown | None:
    """The stream of a process with the most GPU work, which sets its pace. Streams are never summed."""
    return next((breakdown for breakdown in breakdowns if breakdown.process == process), None)


def _breakdown(sync_intervals: Array) -> StreamBreakdown:
    def total(name: str) -> int:
        return int(sync_intervals[name].sum(dtype=np.int64))

    sync_end_ns = sync_intervals["sync_end_ns"]
    return StreamBreakdown(
        process=int(sync_intervals["process"][0]),
        pid=int(sync_intervals["pid"][0]),
        device=int(sync_intervals["device"][0]),
        stream=int(sync_intervals["stream"][0]),
        sync_intervals=len(sync_intervals),
        incomplete=int(((sync_intervals["flags"] & int(SyncIntervalFlag.INCOMPLETE)) != 0).sum()),
        launches=total("launches"),
        size_bytes=total("bytes"),
        wall_ns=int((sync_end_ns - sync_intervals["prev_sync_end_ns"]).sum()),
        idle=_part(sync_intervals, "idle", sync_intervals["idle_ns"]),
        busy_ns=total("busy_ns"),
        launching=_part(sync_intervals, "launch", sync_intervals["sync_start_ns"] - sync_intervals["first_launch_ns"]),
        return_delay_ns=total("return_delay_ns"),
        return_delay_low_ns=int((sync_end_ns - sync_intervals["gpu_done_high_ns"]).sum()),
        return_delay_high_ns=int((sync_end_ns - sync_intervals["gpu_done_low_ns"]).sum()),
        sync=_part(sync_intervals, "sync", sync_end_ns - sync_intervals["sync_start_ns"]),
    )


def _summed(gpu_stream: GpuStreamSums, index: int, name: str) -> PartBreakdown:
    return PartBreakdown(
        total_ns=gpu_stream.sums[f"{name}_ns"],
        states_ns=tuple(int(value) for value in gpu_stream.states_ns[index]),
        unknown_ns=gpu_stream.sums[f"{name}_unknown_ns"],
    )


def _part(sync_intervals: Array, name: str, lengths: Array) -> PartBreakdown:
    state_ns = sync_intervals[f"{name}_state_ns"]
    is_known = state_ns[:, 0] != _NOT_RECORDED
    return PartBreakdown(
        total_ns=int(lengths.sum()),
        states_ns=tuple(int(value) for value in state_ns[is_known].sum(axis=0, dtype=np.int64)),
        unknown_ns=int(lengths[~is_known].sum()),
    )
