"""A request for GPU memory failed, the allocator gave its cache back, and asked again: each time the device waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ingero.diagnose import cache_pressure
from ingero.diagnose.calls import INSIDE
from ingero.diagnose.cases import Case
from ingero.diagnose.evidence import Evidence
from ingero.diagnose.failed_allocations import FailedAllocation, failed_allocations, had_room
from ingero.diagnose.model import Bucket, Finding, FindingKind, Fix, Link, Part, Severity
from ingero.diagnose.rule import Rule
from ingero.store.records import Process, Window
from ingero.units import format_bytes, format_ns

CAUSE = "allocator-retry"
MIN_RETRIES = 3  # before they matter without lost time; one or two are how an allocator finds its size


def find(case: Case) -> Iterator[Finding]:
    """The time from failures to the requests that succeeded, of what was lost on the way to the device."""
    retries = retries_of(case.evidence, case.window, case.process.process)
    if cache_pressure.is_proven(case.evidence, case.process, retries):
        return
    cost = sum(one.end_ns - one.begin_ns for one in retries)
    claims = case.take((Part.EMPTY, Part.ENQUEUE), INSIDE, cost) if retries else {}
    if claims:
        lost = f"lost {case.amount(sum(claims.values()))}"
        yield _finding(case.evidence, case.process, retries, lost, claims)


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Processes that do so again and again."""
    found: dict[int, list[FailedAllocation]] = defaultdict(list)
    for one in retries_of(evidence, evidence.window):
        found[one.process].append(one)
    for number, retries in found.items():
        process = evidence.processes.get(number)
        if process and len(retries) >= MIN_RETRIES and not cache_pressure.is_proven(evidence, process, retries):
            cost = sum(one.end_ns - one.begin_ns for one in retries)
            yield _finding(evidence, process, retries, f"spent {format_ns(cost)}", {})


def retries_of(evidence: Evidence, window: Window, process: int | None = None) -> list[FailedAllocation]:
    """Requests that failed, were followed by frees, and then succeeded; those for which there was room are not."""
    found = failed_allocations(evidence, window, process)
    return [one for one in found if one.is_recovered and one.frees and had_room(evidence, one) is None]


def _finding(
    evidence: Evidence,
    process: Process,
    retries: Sequence[FailedAllocation],
    lost: str,
    claims: Mapping[Bucket, int],
) -> Finding:
    worst = max(retries, key=lambda one: one.end_ns - one.begin_ns)
    line = evidence.own_line(worst.stack_hash)
    frees = sum(one.frees for one in retries)
    times = f"{len(retries)} times" if len(retries) > 1 else "once"
    return Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=str(process.pid),
        kind=None if claims else FindingKind.EVENT,
        severity=None if claims else Severity.LOW,
        window=None if claims else Window(begin_ns=retries[0].begin_ns, end_ns=retries[-1].end_ns + 1),
        summary=f"{process.name} [{process.pid}] {lost} because GPU memory ran out {times}: its allocator gave back "
        f"{frees} cached blocks and asked again for {format_bytes(worst.size_bytes)}{f' in {line}' if line else ''}",
        claims=claims,
        line=line,
        chain=(
            Link(
                text=f"{worst.name} of {format_bytes(worst.size_bytes)} failed, {worst.frees} blocks were freed, and "
                f"the same request succeeded after {format_ns(worst.end_ns - worst.begin_ns)}",
                seen_ns=sum(one.end_ns - one.begin_ns for one in retries),
                expected_ns=0,
                structure="failure, frees and success on one thread; the blocks that were freed held nothing in use",
                order="each free waits until the device is idle, then the allocation goes on",
            ),
        ),
        fixes=(
            Fix(
                text="keep cached blocks usable for other sizes",
                command="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            ),
            Fix(text="or leave some room: a smaller batch, fewer different shapes, or no second process on that GPU"),
        ),
        evidence={
            "retries": len(retries),
            "blocks given back": frees,
            "time in retries (ns)": sum(one.end_ns - one.begin_ns for one in retries),
        },
    )


RULE = Rule(
    cause=CAUSE,
    title="the allocator emptied its cache to get memory",
    order=49,
    needs=("allocations",),
    shows="failed request, frees and the same request with success on one thread, with the time from the first to the "
    "last",
    limits="a framework that frees before it asks makes no failing call; then the frees are allocation-churn",
    find=find,
    watch=watch,
)
