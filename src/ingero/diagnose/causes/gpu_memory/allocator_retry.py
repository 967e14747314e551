"""A request for GPU memory failed, the allocator freed its cache and retried; each time the GPU waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ingero.diagnose.cases.call_growth import claim_in_waits, grown_calls
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.gpu_memory import kv_cache
from ingero.diagnose.causes.gpu_memory.failed_allocations import (
    FailedAllocation,
    are_all_recorded,
    failed_allocations,
    room_despite_failure,
)
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Bucket, Finding, FindingKind, Fix, Link, Severity
from ingero.ops import Kind
from ingero.store.records import Process, Window
from ingero.units import format_bytes, format_count, format_ns

CAUSE = "allocator-retry"
MIN_RETRIES = 3  # before they are reported without lost time; an allocator finds its size with one or two


@dataclass(frozen=True, slots=True)
class Retries:
    """Recorded retries of one process. each_stands_for: how many retries each record represents."""

    recorded: Sequence[FailedAllocation]
    each_stands_for: float

    @property
    def count(self) -> int:
        """Number of retries."""
        return round(len(self.recorded) * self.each_stands_for)

    @property
    def cost_ns(self) -> int:
        """Time from the failures to the requests that succeeded."""
        return round(sum(retry.end_ns - retry.begin_ns for retry in self.recorded) * self.each_stands_for)

    @property
    def frees(self) -> int:
        """Blocks freed in between."""
        return round(sum(retry.frees for retry in self.recorded) * self.each_stands_for)


def explain(case: Case) -> Iterator[Finding]:
    """Time from failed requests to the successful retries, of what was lost before the GPU had work."""
    recorded = retries_of(case.evidence, case.window, case.process.process)
    if not recorded or kv_cache.is_kv_cache_shortage(case.evidence, case.process, recorded):
        return
    retries, grown = _estimated_retries(case.evidence, case.window, recorded), grown_calls(case, Kind.ALLOC | Kind.FREE)
    if grown and (claims := claim_in_waits(case, grown, min(float(retries.cost_ns), grown.grown_ns))):
        lost = f"lost {case.amount(sum(claims.values()))}"
        yield _finding(case.evidence, case.process, retries, lost, claims)


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes that retry repeatedly."""
    by_process: dict[int, list[FailedAllocation]] = defaultdict(list)
    for retry in retries_of(evidence, evidence.window):
        by_process[retry.process].append(retry)
    for number, recorded in by_process.items():
        process, retries = evidence.processes.get(number), _estimated_retries(evidence, evidence.window, recorded)
        if process and retries.count >= MIN_RETRIES and not kv_cache.is_kv_cache_shortage(evidence, process, recorded):
            yield _finding(evidence, process, retries, f"spent {format_ns(retries.cost_ns)}", {})


def retries_of(evidence: Evidence, window: Window, process: int | None = None) -> list[FailedAllocation]:
    """Requests that failed, were followed by frees, and then succeeded; not those that failed despite free memory."""
    failures = failed_allocations(evidence, window, process)
    return [
        failure
        for failure in failures
        if failure.is_recovered and failure.frees and room_despite_failure(evidence, failure) is None
    ]


def _estimated_retries(evidence: Evidence, window: Window, recorded: Sequence[FailedAllocation]) -> Retries:
    """Retries with their true number: every failure is counted, but what followed it is not always recorded.

    Failures whose frees or success are unknown are assumed to be retries as often as the others.
    """
    process = recorded[0].process
    failures = sum(site.failures for site in evidence.reader.memory_sites(window, process=process))
    is_complete = are_all_recorded(evidence, window, process, with_frees=True)
    failed = failed_allocations(evidence, window, process)
    known = sum(
        failure.tries - failure.is_recovered
        for failure in failed
        if is_complete or (failure.is_recovered and failure.frees)
    )
    return Retries(recorded, max(failures / max(known, 1), 1.0))


def _finding(
    evidence: Evidence, process: Process, retries: Retries, lost: str, claims: Mapping[Bucket, int]
) -> Finding:
    worst = max(retries.recorded, key=lambda retry: retry.end_ns - retry.begin_ns)
    first, last = retries.recorded[0], retries.recorded[-1]
    line = evidence.own_line(worst.stack_hash)
    times = f"{format_count(retries.count)} times" if retries.count > 1 else "once"
    place = f" in {line}" if line else ""
    return Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=str(process.pid),
        kind=None if claims else FindingKind.EVENT,
        severity=None if claims else Severity.LOW,
        window=None if claims else Window(begin_ns=first.begin_ns, end_ns=last.end_ns + 1),
        summary=f"{process.name} [{process.pid}] {lost} because GPU memory ran out {times}: its allocator "
        "freed "
        f"{format_count(retries.frees)} cached blocks and retried {format_bytes(worst.size_bytes)}{place}",
        claims=claims,
        line=line,
        chain=(
            Link(
                text=f"{worst.name} of {format_bytes(worst.size_bytes)} failed, {worst.frees} blocks were freed, and "
                f"the same request succeeded after {format_ns(worst.end_ns - worst.begin_ns)}",
                seen_ns=retries.cost_ns,
                expected_ns=0,
                structure="failure, frees and success on one thread; the blocks that were freed held nothing in use",
                order="each free waits until the GPU is idle, then the allocation goes on",
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
            "retries": retries.count,
            "of them with a record": len(retries.recorded),
            "blocks freed": retries.frees,
            "time in retries (ns)": retries.cost_ns,
        },
    )


RULE = Rule(
    cause=CAUSE,
    title="the allocator emptied its cache to get memory",
    order=49,
    needs=("allocations",),
    shows="failed request, frees and the same request with success on one thread, with the time from the first to the "
    "last; how many there were by the exact count of failures",
    limits="a framework that frees before it asks makes no failing call; then the frees are allocation-churn",
    explain=explain,
    find_events=find_events,
)
