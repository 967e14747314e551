"""More managed memory is in use than the GPU has: what does not fit migrates between host and GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.causes.gpu_memory import memory_in_use
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Culprit, Finding, FindingKind, Fix, Link, Severity
from ingero.ops import MemoryKind
from ingero.store.records import Process, Window
from ingero.units import format_bytes

CAUSE = "managed-memory-oversubscription"
MAX_UNPAIRED_RATIO = 0.1  # of the live blocks


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes with one GPU that hold more managed memory than it has."""
    rows = memory_in_use.memory_levels(evidence, (MemoryKind.MANAGED,))
    for number in sorted(set(rows["process"].tolist()) & evidence.processes.keys()):
        levels, process = rows[rows["process"] == number], evidence.processes[number]
        total = memory_in_use.memory_bytes(evidence, memory_in_use.gpu_of(evidence, process))
        above = levels[
            (levels["live_bytes"] > total) & (levels["unpaired"] <= MAX_UNPAIRED_RATIO * levels["live_count"])
        ]
        if total and len(above):
            most = above[int(above["live_bytes"].argmax())]
            begin = max(int(above["start_ns"][0]), evidence.window.begin_ns)
            end = max(int(above["start_ns"][-1] + above["period_ns"][-1]), begin + 1)
            yield _finding(evidence, process, Window(begin_ns=begin, end_ns=end), int(most["live_bytes"]), total)


def _finding(evidence: Evidence, process: Process, window: Window, live_bytes: int, total: int) -> Finding:
    container = evidence.container_of(process.cgroup_id)
    return Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=str(process.pid),
        kind=FindingKind.EVENT,
        severity=Severity.MEDIUM,
        window=window,
        summary=f"{process.name} [{process.pid}] holds {format_bytes(live_bytes)} of managed memory on a GPU with "
        f"{format_bytes(total)}: pages beyond that are migrated back and forth",
        culprits=(Culprit(pid=process.pid, name=process.name, container=container),),
        chain=(
            Link(
                text=f"{format_bytes(live_bytes)} of managed memory were in use at a time",
                structure="each free is paired with its allocation in the kernel; the memory of the GPU is as its "
                "driver reports it",
                order="pages that do not fit are evicted before others can come",
            ),
        ),
        fixes=(
            Fix(text="make the working set fit: smaller pieces, or a larger GPU"),
            Fix(
                text="or set its preferred location",
                command="cudaMemAdvise(..., cudaMemAdviseSetPreferredLocation, ...)",
            ),
        ),
        evidence={"managed (bytes)": live_bytes, "memory of the GPU (bytes)": total},
    )


RULE = Rule(
    cause=CAUSE,
    title="more managed memory than the GPU has",
    order=90,
    needs=("allocations", "gpu_samples", "GPU"),
    shows="the bytes of managed memory that were in use at a time, against the memory of the GPU",
    limits="which pages move, and what that costs, happens on the GPU; managed memory that the GPU never touches "
    "counts, too; a process with several GPUs is not judged",
    find_events=find_events,
)
