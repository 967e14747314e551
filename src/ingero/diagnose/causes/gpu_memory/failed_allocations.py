"""Requests for GPU memory that failed, and their outcome: retried with success, or not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ingero.diagnose.causes.gpu_memory import memory_in_use
from ingero.diagnose.causes.gpu_memory.memory_in_use import FreeMemory
from ingero.diagnose.evidence.evidence import Evidence
from ingero.ops import OPS, Kind, Source
from ingero.store.records import Window

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY
RETRY_NS = 2_000_000_000  # from a failure to the same request again; freeing a full cache takes tenths of a second
_USUAL_RETRY_NS = 1_000_000_000  # most requests are retried within this time
MARGIN = 0.02  # of the GPU's memory: the driver's own use, and changes between two samples

_GPU_ALLOCATIONS = {
    (int(op.source), op.code) for op in OPS if op.kind & Kind.ALLOC and op.memory in memory_in_use.GPU_MEMORY_KINDS
}
_FREES = {(int(op.source), op.code) for op in OPS if op.kind & Kind.FREE}
_NAME_BY_OP = {(int(op.source), op.code): op.name for op in OPS}
_SOURCES = tuple(sorted({Source(source) for source, _ in _GPU_ALLOCATIONS | _FREES}))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """One request for GPU memory that failed, and what its thread did next.

    end_ns: when it had the memory, or its last try had failed. frees: blocks freed in between.
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
    """Requests for GPU memory that ran out of memory in the window, ascending in time.

    A later try by the same thread for the same size belongs to the first request.
    """
    if not any(site.failures for site in evidence.reader.memory_sites(window, process=process)):
        return []  # exact counts: no need to read the calls
    until = Window(begin_ns=window.begin_ns, end_ns=window.end_ns + RETRY_NS)
    threads: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for row in evidence.reader.call_rows(until, sources=_SOURCES, process=process, ops=_GPU_ALLOCATIONS | _FREES):
        threads[int(row["process"]), int(row["tid"])].append(row)
    failures = [
        failure
        for rows in threads.values()
        for failure in _failures_of_thread(rows)
        if failure.begin_ns < window.end_ns
    ]
    return sorted(failures, key=lambda failure: failure.begin_ns)


def _failures_of_thread(rows: list[Any]) -> Iterator[FailedAllocation]:
    """One thread's failures, each with its tries."""
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
            name=_NAME_BY_OP[_op(first)],
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
    return _op(row) in _GPU_ALLOCATIONS and int(row["ret_code"]) == OUT_OF_MEMORY


def _end_ns(row: Any) -> int:
    return int(row["start_ns"] + row["duration_ns"])


def room_despite_failure(evidence: Evidence, failure: FailedAllocation) -> FreeMemory | None:
    """Proof that a request failed although enough memory was free: before, after, and little moved in between."""
    process = evidence.processes.get(failure.process)
    uuid = memory_in_use.gpu_of(evidence, process) if process else ""
    room = memory_in_use.free_memory_around(evidence, uuid, failure.begin_ns, failure.end_ns) if uuid else None
    if room is None or room.free_bytes < failure.size_bytes or room.moved_bytes >= failure.size_bytes:
        return None
    between = Window(begin_ns=room.before.time_ns, end_ns=room.after.time_ns + 1)
    allocated_meanwhile = sum(
        site.allocated_bytes for site in evidence.reader.memory_sites(between)
    )  # may have been freed again
    needed = (
        failure.size_bytes + allocated_meanwhile + room.moved_bytes + MARGIN * (room.before.memory_total_bytes or 0)
    )
    return room if room.free_bytes >= needed else None


def is_final(evidence: Evidence, failure: FailedAllocation) -> bool:
    """Whether the request was certainly not retried with success: every call that could be the retry is recorded."""
    if failure.is_recovered:
        return False
    until = Window(begin_ns=failure.begin_ns, end_ns=failure.end_ns + RETRY_NS)
    return are_all_recorded(evidence, until, failure.process)


def may_be_retried(evidence: Evidence, failure: FailedAllocation) -> bool:
    """Whether it failed a moment ago in a live recording, and its process may still retry."""
    process = evidence.processes.get(failure.process)
    is_fresh = evidence.is_live and evidence.window.end_ns - failure.end_ns < _USUAL_RETRY_NS
    return is_fresh and not failure.is_recovered and process is not None and process.exit_ns is None


def are_all_recorded(evidence: Evidence, window: Window, process: int, *, with_frees: bool = False) -> bool:
    """Whether every GPU allocation in the window is recorded, and with `with_frees` every free."""
    ops = _GPU_ALLOCATIONS | _FREES if with_frees else _GPU_ALLOCATIONS
    totals = evidence.reader.op_totals(window, process=process)
    return all(row.recorded >= row.count for row in totals if (row.source, row.op) in ops)


def continued_after(evidence: Evidence, failure: FailedAllocation) -> bool:
    """Whether the process waited for its GPU again afterwards: it continues without that memory."""
    gpu_stream = evidence.gpu_streams.get(failure.process)
    return gpu_stream is not None and bool((gpu_stream["first_launch_ns"] > failure.end_ns).any())
