"""The critical path touched pages that had to be read from disk first."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.host_memory.reclaim import MemoryPressure
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.causes.storage.block_requests import device_name
from ingero.diagnose.findings import Finding, Fix, Link
from ingero.units import format_count

CAUSE = "major-page-faults"
MIN_FAULTS = 20  # fewer are single pages of a program or library that was not in memory


def explain(case: Case) -> Iterator[Finding]:
    """Waits on the critical path for reads issued inside a page fault."""
    pressure = MemoryPressure(case)
    faults = pressure.faults()
    claims = pressure.disk.paths.claim(pressure.is_fault) if faults >= MIN_FAULTS else {}
    if not claims:
        return
    lost = sum(claims.values())
    segments = [segment for segment in pressure.disk.paths.all() if pressure.is_fault(segment)]
    longest_wait = max(segments, key=lambda segment: segment.duration_ns)
    requests = pressure.disk.requests_behind(segments)
    process = case.evidence.process_at(longest_wait.pid) or case.process
    yield Finding(
        cause=CAUSE,
        resource=device_name(requests.device),
        root=str(longest_wait.pid),
        summary=f"{case.who} lost {case.amount(lost)} while {case.thread_name(longest_wait)} [{longest_wait.pid}] "
        "touched memory "
        f"that was not resident: {format_count(faults)} major page faults read from {device_name(requests.device)}",
        claims=claims,
        line=case.evidence.sampled_line(case.window, process.process, states=("io", "uninterruptible")),
        chain=(
            Link(
                text="page after page was read from disk when it was touched",
                seen_ns=lost,
                structure="block reads issued inside a page fault of the thread that waited",
                order="fault, read, then the thread went on",
            ),
        ),
        fixes=(
            Fix(
                text="read files instead of mapping them, or advise the kernel (madvise)",
                command="mmap.madvise(MADV_WILLNEED)",
            ),
            Fix(text="or prefault everything once before the loop", command="vmtouch -t <file>"),
        ),
        evidence={"page faults read from disk": faults} | requests.facts,
    )


RULE = Rule(
    cause=CAUSE,
    title="major page faults: touched memory had to be read from disk",
    order=18,
    needs=("sync_intervals", "offcpu", "IO"),
    shows="block reads issued inside page faults of the critical-path thread, or of the worker it waited for",
    limits="faults that need no disk are not recorded: they are CPU time in the kernel; for faults because memory is "
    "short see memory-pressure",
    explain=explain,
)
