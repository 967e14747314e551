"""When two processes had work on one GPU at the same time, from the sync intervals of their main streams."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.process_gpus import gpu_ordinal_of, same_gpu
from ingero.store.records import Process
from ingero.units import format_percent

Array = np.ndarray[Any, np.dtype[Any]]

_MIN_SHARED_RATIO = 0.25  # of the time in which a process had work: below it, a neighbor is seldom noticed
_MAX_NAMES = 2  # processes named in a verdict


def within_others_span(gpu_stream: Array, others: Array) -> slice:
    """The sync intervals of a stream between the other's first and last; the intervals are consecutive."""
    first, last = np.searchsorted(
        gpu_stream["sync_end_ns"], (others["prev_sync_end_ns"][0], others["sync_end_ns"].max())
    )
    return slice(int(first), int(last) + 1)


def overlap_ns(gpu_stream: Array, others: Array) -> Array:
    """How long the other process had work on the GPU during each sync interval; the intervals are consecutive."""
    begins, ends = others["first_launch_ns"], np.maximum.accumulate(others["gpu_done_ns"])
    busy_ns = np.concatenate([[0], np.cumsum(np.maximum(ends - np.maximum(begins, np.append(0, ends[:-1])), 0))])

    def busy_ns_until(times: Array) -> Array:
        """How long the other process had work before each of these times."""
        count = np.searchsorted(begins, times, side="right")
        last = np.maximum(count - 1, 0)
        not_yet_ns = np.where(count > 0, np.maximum(ends[last] - times, 0), 0)
        before: Array = busy_ns[count] - not_yet_ns
        return before

    overlap: Array = np.maximum(
        busy_ns_until(gpu_stream["gpu_done_ns"]) - busy_ns_until(gpu_stream["first_launch_ns"]), 0
    )
    return overlap


def gpu_sharing_text(evidence: Evidence, process: Process, gpu_stream: Array) -> str:
    """Which other processes had work on a process's GPU at the same time, for a verdict; "" for none known."""
    busy_ns = max(int(gpu_stream["busy_ns"].sum()), 1)
    sharers = []
    for number, other_stream in evidence.gpu_streams.items():
        other = evidence.processes.get(number)
        if other is None or number == process.process or not len(other_stream):
            continue
        devices = [(user, gpu_ordinal_of(evidence, user)) for user in (process.process, number)]
        if same_gpu(evidence, devices[0], devices[1]):
            own_intervals = gpu_stream[within_others_span(gpu_stream, other_stream)]
            share = int(overlap_ns(own_intervals, other_stream).sum()) / busy_ns if len(own_intervals) else 0.0
            if share >= _MIN_SHARED_RATIO:
                sharers.append((share, f"{other.name} [{other.pid}] {format_percent(min(share, 1.0))}"))
    if not sharers:
        return ""
    names = " and ".join(text for _, text in sorted(sharers, reverse=True)[:_MAX_NAMES])
    more = f" and {len(sharers) - _MAX_NAMES} more" if len(sharers) > _MAX_NAMES else ""
    return f"others had work on the same GPU meanwhile: {names} of that time{more}"
