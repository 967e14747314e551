"""When two processes had work on one GPU at the same time, by the sync intervals of their main streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.process_gpus import device_of, same_gpu
from ingero.store.records import Process
from ingero.units import format_percent

Array = np.ndarray[Any, np.dtype[Any]]

_MUCH = 0.25  # of the time in which a process had work: less is a neighbor that comes and goes, and seldom felt
_MOST_NAMES = 2


def while_there(gpu_stream: Array, others: Array) -> slice:
    """The sync intervals of a stream, which follow one another, that lie between the other's first and last."""
    first, last = np.searchsorted(
        gpu_stream["sync_end_ns"], (others["prev_sync_end_ns"][0], others["sync_end_ns"].max())
    )
    return slice(int(first), int(last) + 1)


def overlap_ns(gpu_stream: Array, others: Array) -> Array:
    """How long the other process had work on the GPU during each sync interval; these follow one another."""
    begins, ends = others["first_launch_ns"], np.maximum.accumulate(others["gpu_done_ns"])
    done = np.concatenate([[0], np.cumsum(np.maximum(ends - np.maximum(begins, np.append(0, ends[:-1])), 0))])

    def until(times: Array) -> Array:
        """How long it had work before each of these times."""
        count = np.searchsorted(begins, times, side="right")
        last = np.maximum(count - 1, 0)
        beyond = np.where(count > 0, np.maximum(ends[last] - times, 0), 0)
        before: Array = done[count] - beyond
        return before

    overlap: Array = np.maximum(until(gpu_stream["gpu_done_ns"]) - until(gpu_stream["first_launch_ns"]), 0)
    return overlap


def shared_with(evidence: Evidence, process: Process, gpu_stream: Array) -> str:
    """Who else had work on a process's GPU while it had, as a verdict says it; "" where nobody is known to have."""
    busy_ns = max(int(gpu_stream["busy_ns"].sum()), 1)
    found = []
    for number, theirs in evidence.gpu_streams.items():
        other = evidence.processes.get(number)
        if other is None or number == process.process or not len(theirs):
            continue
        devices = [(one, device_of(evidence, one)) for one in (process.process, number)]
        if same_gpu(evidence, devices[0], devices[1]):
            there = gpu_stream[while_there(gpu_stream, theirs)]
            share = int(overlap_ns(there, theirs).sum()) / busy_ns if len(there) else 0.0
            if share >= _MUCH:
                found.append((share, f"{other.name} [{other.pid}] {format_percent(min(share, 1.0))}"))
    if not found:
        return ""
    names = " and ".join(text for _, text in sorted(found, reverse=True)[:_MOST_NAMES])
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return f"others had work on the same GPU meanwhile: {names} of that time{more}"
