"""Whether trouble with GPU memory is made by the key-value cache of a process that serves requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingero.diagnose.cases.call_growth import Growth
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cuda_calls.graph_captures import launches
from ingero.diagnose.causes.gpu_memory import memory_in_use
from ingero.diagnose.causes.gpu_memory.failed_allocations import FailedAllocation
from ingero.diagnose.causes.gpu_memory.memory_in_use import Room
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.lost_time.no_demand import idle_ns
from ingero.store.records import Process, Window

MIN_RETRIES = 2
FULL = 0.95  # of the GPU's memory
LESS = 0.9  # of the usual launches per second
SERVES = 0.02  # of its time a process waited for somebody outside to ask for something
# Functions and files of the caches of vLLM, SGLang, TGI and transformers (cache_utils.DynamicCache, past_key_values)
_CACHE_CODE = re.compile(r"kv_?cache|cache_engine|block_manager|past_key|DynamicCache|cache_utils|paged_?att", re.I)


def is_proven(evidence: Evidence, process: Process, failures: Sequence[FailedAllocation]) -> bool:
    """Whether they were: on a full GPU, more than once, in code that keeps keys and values, of a server."""
    mine = [one for one in failures if in_cache_code(evidence, one.stack_hash)]
    return len(mine) >= MIN_RETRIES and fullest(evidence, process, mine) is not None and serves(evidence, process)


def in_cache_code(evidence: Evidence, stack_hash: int) -> bool:
    """Whether a line of the stack is in such code."""
    stack = evidence.stacks.of(stack_hash)
    return any(_CACHE_CODE.search(f"{place.file} {place.function}") for place in stack.python) if stack else False


def fullest(evidence: Evidence, process: Process, failures: Sequence[FailedAllocation]) -> Room | None:
    """The fullest that the GPU was just before one of them; None where it was not full, or that is not known."""
    uuid = memory_in_use.gpu_of(evidence, process)
    rooms = [room for one in failures if (room := memory_in_use.room_at(evidence, uuid, one.begin_ns, one.end_ns))]
    most = max(rooms, key=lambda room: room.used_ratio, default=None)
    return most if most and most.used_ratio >= FULL else None


def is_churn(case: Case, grown: Growth) -> bool:
    """Whether grown allocations are mostly of such code, on a full GPU, while a server launches less than usual."""
    change = grown.largest.totals
    reader, number = case.evidence.reader, case.process.process
    times = [
        one for one in reader.stack_times(case.window, process=number, sources=(change.source,)) if one.op == change.op
    ]
    mine = sum(one.sum_ns for one in times if in_cache_code(case.evidence, one.stack_hash))
    return (
        mine > sum(one.sum_ns for one in times) / 2
        and memory_in_use.used_ratio(case.evidence, memory_in_use.gpu_of(case.evidence, case.process), case.window)
        >= FULL
        and serves(case.evidence, case.process)
        and _launch_rate(case, (case.window,)) < LESS * _launch_rate(case, case.baselines)
    )


def _launch_rate(case: Case, windows: Sequence[Window]) -> float:
    counts = [sum(launches(case.evidence, window, case.process.process)) for window in windows]
    return sum(counts) / max(sum(window.duration_ns for window in windows), 1)


def serves(evidence: Evidence, process: Process) -> bool:
    """Whether it is seen waiting for requests."""
    gpu_stream = evidence.gpu_streams.get(process.process)
    if gpu_stream is None or not len(gpu_stream) or not evidence.reader.is_recorded("raw_offcpu"):
        return False
    wall = int(gpu_stream["sync_end_ns"][-1] - gpu_stream["prev_sync_end_ns"][0])
    return float(idle_ns(evidence, process, gpu_stream).sum()) >= SERVES * wall
