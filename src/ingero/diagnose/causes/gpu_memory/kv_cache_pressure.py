"""A serving process runs with a full GPU, and its KV cache competes for memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ingero.diagnose.cases.call_growth import INSIDE, CallGrowth, claim_inside_calls, grown_calls
from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.gpu_memory import kv_cache
from ingero.diagnose.causes.gpu_memory.allocator_retry import retries_of
from ingero.diagnose.causes.gpu_memory.failed_allocations import FailedAllocation
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.findings import Bucket, Finding, FindingKind, Fix, Link, Part, Severity
from ingero.ops import Kind
from ingero.store.records import Process, Window
from ingero.units import format_bytes, format_ns, format_percent

CAUSE = "kv-cache-pressure"
_FIXES = (
    Fix(
        text="admit fewer requests at a time, or give the cache more memory",
        command="vllm serve <model> --max-num-seqs <fewer> --gpu-memory-utilization <share>",
    ),
    Fix(text="shorten the cached context", command="vllm serve <model> --max-model-len <tokens> --kv-cache-dtype fp8"),
)


def explain(case: Case) -> Iterator[Finding]:
    """Time of such requests, of what was lost before the GPU had work."""
    retries = retries_of(case.evidence, case.window, case.process.process)
    if kv_cache.is_kv_cache_shortage(case.evidence, case.process, retries):
        cost = sum(retry.end_ns - retry.begin_ns for retry in retries)
        claims = case.claimable((Part.IDLE, Part.LAUNCH), INSIDE, cost)
        if claims:
            yield _finding(case.evidence, case.process, retries, claims)
        return
    grown = grown_calls(case, Kind.ALLOC | Kind.FREE) if case.kind is FindingKind.INCIDENT else None
    if grown and kv_cache.is_kv_cache_churn(case, grown):
        claims = claim_inside_calls(case, (Part.IDLE, Part.LAUNCH), grown)
        if claims:
            yield _churn_finding(case, grown, claims)


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Serving processes with requests of their KV cache that failed, even without lost time."""
    by_process: dict[int, list[FailedAllocation]] = defaultdict(list)
    for retry in retries_of(evidence, evidence.window):
        by_process[retry.process].append(retry)
    for number, retries in by_process.items():
        process = evidence.processes.get(number)
        if process and kv_cache.is_kv_cache_shortage(evidence, process, retries):
            yield _finding(evidence, process, retries, {})


def _churn_finding(case: Case, grown: CallGrowth, claims: Mapping[Bucket, int]) -> Finding:
    line = case.line_of(grown.largest)
    return Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=str(case.process.pid),
        summary=f"{case.who} serves with a full GPU and lost {case.amount(sum(claims.values()))} allocating for its "
        f"KV cache{f' in {line}' if line else ''}: {grown.text}",
        claims=claims,
        line=line,
        chain=(
            grown.link(
                text=f"the launching thread was inside {grown.largest.totals.name}, called for the cache",
                structure="the calls' exact sums; most of their recorded time in code that keeps keys and values",
                order="the GPU was more than 95% full meanwhile, and fewer kernels were launched per second",
            ),
        ),
        fixes=_FIXES,
        evidence={"calls per step": round(grown.count, 2), "baseline": round(grown.baseline_count, 2)},
    )


def _finding(
    evidence: Evidence, process: Process, retries: Sequence[FailedAllocation], claims: Mapping[Bucket, int]
) -> Finding:
    worst = next(retry for retry in retries if kv_cache.in_cache_code(evidence, retry.stack_hash))
    room = kv_cache.fullest_room(evidence, process, retries)
    used = room.used_ratio if room else 0.0
    cost = sum(retry.end_ns - retry.begin_ns for retry in retries)
    line = evidence.own_line(worst.stack_hash)
    return Finding(
        cause=CAUSE,
        resource="gpu memory",
        root=str(process.pid),
        kind=None if claims else FindingKind.EVENT,
        severity=None if claims else Severity.MEDIUM,
        window=None if claims else Window(begin_ns=retries[0].begin_ns, end_ns=retries[-1].end_ns + 1),
        summary=f"{process.name} [{process.pid}] serves with {format_percent(used)} of the GPU's memory in use; "
        f"{len(retries)} times its KV cache got no memory until other blocks were freed, {format_ns(cost)} in all",
        claims=claims,
        line=line,
        chain=(
            Link(
                text=f"{worst.name} of {format_bytes(worst.size_bytes)} failed in {line or 'its cache'}, "
                f"{worst.frees} blocks were freed, and the same request succeeded",
                seen_ns=cost,
                expected_ns=0,
                structure="failure, frees and success on one thread, in code that keeps keys and values",
                order="the GPU was full in the driver's sample before it",
            ),
        ),
        fixes=_FIXES,
        evidence={"retries": len(retries), "memory used (ratio)": round(used, 4), "time in retries (ns)": cost},
    )


RULE = Rule(
    cause=CAUSE,
    title="GPU memory is full, and the KV cache of a server waits for memory",
    order=47,
    needs=("allocations", "gpu_samples", "GPU", "offcpu", "stack_samples"),
    shows="a process that waits for requests, on a GPU that is more than 95% full, whose cache code got memory only "
    "on a retry, or spent the lost time allocating while fewer kernels were launched",
    limits="a cache whose blocks are allocated once at the start makes no calls later; how full it is and what it "
    "evicts is not visible",
    explain=explain,
    find_events=find_events,
)
