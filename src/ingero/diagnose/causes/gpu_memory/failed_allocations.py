"""Requests for GPU memory that failed, and what came of them: tried again with success, or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ingero.diagnose.causes.gpu_memory import memory_in_use
from ingero.diagnose.causes.gpu_memory.memory_in_use import Room
from ingero.diagnose.evidence.evidence import Evidence
from ingero.ops import OPS, Kind, Source
from ingero.store.records import Window

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY
RETRY_NS = 2_000_000_000  # from a failure to the same request again; giving back a full cache takes tenths of a second
_SOON_NS = 1_000_000_000  # by then most are repeated
MARGIN = 0.02  # of the GPU's memory: what its driver keeps, and what may change between two samples

_ON_GPU = {(int(op.source), op.code) for op in OPS if op.kind & Kind.ALLOC and op.memory in memory_in_use.ON_DEVICE}
_FREES = {(int(op.source), op.code) for op in OPS if op.kind & Kind.FREE}
_NAMES = {(int(op.source), op.code): op.name for op in OPS}
_SOURCES = tuple(sorted({Source(source) for source, _ in _ON_GPU | _FREES}))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """One request that the GPU had no memory for, and what the thread did next.

    end_ns: when it had the memory, or the last of its tries had failed. frees: memory given back between.
    """

    process: int
    tid: int
    name: str
    size_bytes: int
    begin_ns: int
    end_ns: int
    tries: int
    frees: int
    is_recovered: bool
    stack_hash: int


def failed_allocations(evidence: Evidence, window: Window, process: int | None = None) -> list[FailedAllocation]:
    """Requests for memory of a GPU that failed in the window for want of it, in order of time.

    A try again by the same thread for as many bytes belongs to the first one.
    """
    if not any(one.failures for one in evidence.reader.memory_sites(window, process=process)):
        return []  # exact counts: no need to read the calls
    until = Window(begin_ns=window.begin_ns, end_ns=window.end_ns + RETRY_NS)
    threads: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for row in evidence.reader.call_rows(until, sources=_SOURCES, process=process, ops=_ON_GPU | _FREES):
        threads[int(row["process"]), int(row["tid"])].append(row)
    found = [one for mine in threads.values() for one in _of_thread(mine) if one.begin_ns < window.end_ns]
    return sorted(found, key=lambda one: one.begin_ns)


def _of_thread(rows: list[Any]) -> Iterator[FailedAllocation]:
    """The failures of one thread, each with its tries."""
    index = 0
    while index < len(rows):
        if not _is_failure(rows[index]):
            index += 1
            continue
        first, last, tries, frees, is_recovered = rows[index], rows[index], 1, 0, False
        index += 1
        while index < len(rows) and not is_recovered and int(rows[index]["start_ns"]) - _end_ns(last) <= RETRY_NS:
            row = rows[index]
            if _op(row) in _FREES:
                frees += int(row["ret_code"]) == 0
            elif int(row["arg0"]) != int(first["arg0"]):
                break
            else:
                last, tries, is_recovered = row, tries + 1, int(row["ret_code"]) == 0
            index += 1
        yield FailedAllocation(
            process=int(first["process"]),
            tid=int(first["tid"]),
            name=_NAMES[_op(first)],
            size_bytes=int(first["arg0"]),
            begin_ns=int(first["start_ns"]),
            end_ns=_end_ns(last),
            tries=tries,
            frees=frees,
            is_recovered=is_recovered,
            stack_hash=int(first["stack_hash"]),
        )


def _op(row: Any) -> tuple[int, int]:
    return int(row["source"]), int(row["op"])


def _is_failure(row: Any) -> bool:
    return _op(row) in _ON_GPU and int(row["ret_code"]) == OUT_OF_MEMORY


def _end_ns(row: Any) -> int:
    return int(row["start_ns"] + row["duration_ns"])


def had_room(evidence: Evidence, failure: FailedAllocation) -> Room | None:
    """The proof that a request failed although enough was free: before, after, and nothing much moved between."""
    process = evidence.processes.get(failure.process)
    uuid = memory_in_use.gpu_of(evidence, process) if process else ""
    room = memory_in_use.room_at(evidence, uuid, failure.begin_ns, failure.end_ns) if uuid else None
    if room is None or room.free_bytes < failure.size_bytes or room.moved_bytes >= failure.size_bytes:
        return None
    between = Window(begin_ns=room.before.time_ns, end_ns=room.after.time_ns + 1)
    passing = sum(one.allocated_bytes for one in evidence.reader.memory_sites(between))  # may have been freed again
    needed = failure.size_bytes + passing + room.moved_bytes + MARGIN * (room.before.memory_total_bytes or 0)
    return room if room.free_bytes >= needed else None


def is_final(evidence: Evidence, failure: FailedAllocation) -> bool:
    """Whether the request was certainly not repeated with success: every call that could be it has a record."""
    if failure.is_recovered:
        return False
    until = Window(begin_ns=failure.begin_ns, end_ns=failure.end_ns + RETRY_NS)
    return are_all_recorded(evidence, until, failure.process)


def is_open(evidence: Evidence, failure: FailedAllocation) -> bool:
    """Whether it failed a moment ago, in a recording that goes on, and its process lives and may try again."""
    process = evidence.processes.get(failure.process)
    is_fresh = evidence.is_live and evidence.window.end_ns - failure.end_ns < _SOON_NS
    return is_fresh and not failure.is_recovered and process is not None and process.exit_ns is None


def are_all_recorded(evidence: Evidence, window: Window, process: int, *, with_frees: bool = False) -> bool:
    """Whether each request for memory of a GPU in the window has a record, and each free."""
    meant = _ON_GPU | _FREES if with_frees else _ON_GPU
    totals = evidence.reader.op_totals(window, process=process)
    return all(one.recorded >= one.count for one in totals if (one.source, one.op) in meant)


def goes_on(evidence: Evidence, failure: FailedAllocation) -> bool:
    """Whether the process waited for its device again afterwards: it can do without."""
    gpu_stream = evidence.gpu_streams.get(failure.process)
    return gpu_stream is not None and bool((gpu_stream["first_launch_ns"] > failure.end_ns).any())
