"""Requests for GPU memory failed although more memory than requested was free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ingero.diagnose.causes.gpu_memory.failed_allocations import (
    OUT_OF_MEMORY,
    FailedAllocation,
    failed_allocations,
    room_despite_failure,
)
from ingero.diagnose.causes.gpu_memory.memory_in_use import FreeMemory
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Finding, FindingKind, Fix, Link, Severity
from ingero.store.records import Process, Window
from ingero.units import format_bytes

CAUSE = "gpu-memory-fragmentation"


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes whose requests failed while the driver reported enough free memory before and after."""
    failed: dict[int, list[tuple[FailedAllocation, FreeMemory]]] = defaultdict(list)
    for failure in failed_allocations(evidence, evidence.window):
        room = room_despite_failure(evidence, failure)
        if room:
            failed[failure.process].append((failure, room))
    for number, of_process in failed.items():
        yield _finding(evidence, evidence.processes[number], of_process)


def _finding(evidence: Evidence, process: Process, failed: list[tuple[FailedAllocation, FreeMemory]]) -> Finding:
    worst, room = max(failed, key=lambda failure: failure[1].free_bytes - failure[0].size_bytes)
    line = evidence.own_line(worst.stack_hash)
    is_final = any(not failure.is_recovered for failure, _ in failed)
    return Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=str(process.pid),
        kind=FindingKind.EVENT,
        severity=Severity.CRITICAL if is_final else Severity.MEDIUM,
        window=Window(begin_ns=failed[0][0].begin_ns, end_ns=failed[-1][0].end_ns + 1),
        summary=f"{process.name} [{process.pid}] asked for {format_bytes(worst.size_bytes)} of GPU memory"
        f"{f' in {line}' if line else ''} and did not get it although {format_bytes(room.free_bytes)} was free: "
        "it is in pieces that are too small, or a limit keeps the process from using it",
        culprits=(Culprit(pid=process.pid, name=process.name, container=evidence.container_of(process.cgroup_id)),),
        line=line,
        chain=(
            Link(
                text=f"{worst.name} returned error {OUT_OF_MEMORY} (out of memory)",
                seen_ns=worst.end_ns - worst.begin_ns,
                structure="the return code, and what the driver said was free on the same GPU",
                order="as much was free in the samples just before and just after",
            ),
        ),
        fixes=(
            Fix(
                text="use expandable segments in PyTorch",
                command="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            ),
            Fix(text="check for an MPS or partition limit", command="env | grep CUDA_MPS; nvidia-smi -L"),
        ),
        evidence={
            "requests that failed": len(failed),
            "asked for (bytes)": worst.size_bytes,
            "free (bytes)": room.free_bytes,
        },
    )


RULE = Rule(
    cause=CAUSE,
    title="GPU memory was free, but not in one piece",
    order=14,
    needs=("allocations", "gpu_samples", "GPU"),
    shows="the failed request and the free memory of that GPU in the driver's samples before and after it",
    limits="the driver is sampled once per second: where memory was allocated or freed between the samples, or the "
    "process uses several GPUs, nothing is reported; a limit of MPS looks the same; fragmentation inside a framework's "
    "cache is reported by allocator-retry",
    find_events=find_events,
)
