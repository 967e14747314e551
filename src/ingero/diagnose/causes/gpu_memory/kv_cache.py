"""Whether GPU memory trouble comes from the KV cache of a serving process."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingero.diagnose.cases.call_growth import CallGrowth
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cuda_calls.graph_captures import launch_counts
from ingero.diagnose.causes.gpu_memory import memory_in_use
from ingero.diagnose.causes.gpu_memory.failed_allocations import FailedAllocation
from ingero.diagnose.causes.gpu_memory.memory_in_use import FreeMemory
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.lost_time.no_demand import no_demand_ns
from ingero.store.records import Process, Window

MIN_RETRIES = 2  # in KV-cache code; a single one proves nothing
MIN_FULL_RATIO = 0.95  # of the GPU's memory
MAX_LAUNCH_RATE_RATIO = 0.9  # of the baseline's launches per second
MIN_IDLE_RATIO = 0.02  # of wall time in which a serving process waited for requests
# Functions and files of the caches of vLLM, SGLang, TGI and transformers (cache_utils.DynamicCache, past_key_values)
_CACHE_CODE = re.compile(r"kv_?cache|cache_engine|block_manager|past_key|DynamicCache|cache_utils|paged_?att", re.I)


def is_kv_cache_shortage(evidence: Evidence, process: Process, failures: Sequence[FailedAllocation]) -> bool:
    """Whether these failures were, more than once, in KV-cache code of a serving process on a full GPU."""
    in_cache = [failure for failure in failures if in_cache_code(evidence, failure.stack_hash)]
    return (
        len(in_cache) >= MIN_RETRIES
        and fullest_room(evidence, process, in_cache) is not None
        and serves_requests(evidence, process)
    )


def in_cache_code(evidence: Evidence, stack_hash: int) -> bool:
    """Whether a frame of the stack is in KV-cache code."""
    stack = evidence.stacks.of(stack_hash)
    return any(_CACHE_CODE.search(f"{place.file} {place.function}") for place in stack.python) if stack else False


def fullest_room(evidence: Evidence, process: Process, failures: Sequence[FailedAllocation]) -> FreeMemory | None:
    """The fullest state of the GPU just before one of these failures; None where it was not full, or is unknown."""
    uuid = memory_in_use.gpu_of(evidence, process)
    rooms = [
        room
        for failure in failures
        if (room := memory_in_use.free_memory_around(evidence, uuid, failure.begin_ns, failure.end_ns))
    ]
    most = max(rooms, key=lambda room: room.used_ratio, default=None)
    return most if most and most.used_ratio >= MIN_FULL_RATIO else None


def is_kv_cache_churn(case: Case, grown: CallGrowth) -> bool:
    """Whether grown allocations are mostly in KV-cache code, on a full GPU, while a server launches less than usual."""
    change = grown.largest.totals
    reader, number = case.evidence.reader, case.process.process
    times = [
        row for row in reader.stack_times(case.window, process=number, sources=(change.source,)) if row.op == change.op
    ]
    cache_ns = sum(row.sum_ns for row in times if in_cache_code(case.evidence, row.stack_hash))
    return (
        cache_ns > sum(row.sum_ns for row in times) / 2
        and memory_in_use.used_ratio(case.evidence, memory_in_use.gpu_of(case.evidence, case.process), case.window)
        >= MIN_FULL_RATIO
        and serves_requests(case.evidence, case.process)
        and _launch_rate(case, (case.window,)) < MAX_LAUNCH_RATE_RATIO * _launch_rate(case, case.baseline_windows)
    )


def _launch_rate(case: Case, windows: Sequence[Window]) -> float:
    counts = [sum(launch_counts(case.evidence, window, case.process.process)) for window in windows]
    return sum(counts) / max(sum(window.duration_ns for window in windows), 1)


def serves_requests(evidence: Evidence, process: Process) -> bool:
    """Whether the process was seen waiting for requests."""
    gpu_stream = evidence.gpu_streams.get(process.process)
    if gpu_stream is None or not len(gpu_stream) or not evidence.reader.is_recorded("raw_offcpu"):
        return False
    wall = int(gpu_stream["sync_end_ns"][-1] - gpu_stream["prev_sync_end_ns"][0])
    return float(no_demand_ns(evidence, process, gpu_stream).sum()) >= MIN_IDLE_RATIO * wall
