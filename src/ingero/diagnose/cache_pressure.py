"""Whether requests for GPU memory that failed were made by the key-value cache of a process that serves requests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ingero.diagnose import memory
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.failed_allocations import FailedAllocation
from ingero.diagnose.idle import idle_ns
from ingero.diagnose.memory import Room
from ingero.store.records import Process

MIN_RETRIES = 2
FULL = 0.95  # of the device's memory
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
    uuid = memory.gpu_of(evidence, process)
    rooms = [room for one in failures if (room := memory.room_at(evidence, uuid, one.begin_ns, one.end_ns))]
    most = max(rooms, key=lambda room: room.used_ratio, default=None)
    return most if most and most.used_ratio >= FULL else None


def serves(evidence: Evidence, process: Process) -> bool:
    """Whether it is seen waiting for requests."""
    lane = evidence.lanes.get(process.process)
    if lane is None or not len(lane) or not evidence.reader.is_recorded("raw_offcpu"):
        return False
    wall = int(lane["b_ns"][-1] - lane["a_ns"][0])
    return float(idle_ns(evidence, process, lane).sum()) >= SERVES * wall
