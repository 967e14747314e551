"""A serving process runs with a full GPU, and its key-value cache has to fight for memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ingero.diagnose.cases.call_growth import INSIDE, Growth, claim, growth
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


def find(case: Case) -> Iterator[Finding]:
    """The time of such requests, of what was lost on the way to the GPU."""
    retries = retries_of(case.evidence, case.window, case.process.process)
    if kv_cache.is_proven(case.evidence, case.process, retries):
        cost = sum(one.end_ns - one.begin_ns for one in retries)
        claims = case.take((Part.IDLE, Part.LAUNCH), INSIDE, cost)
        if claims:
            yield _finding(case.evidence, case.process, retries, claims)
        return
    grown = growth(case, Kind.ALLOC | Kind.FREE) if case.kind is FindingKind.INCIDENT else None
    if grown and kv_cache.is_churn(case, grown):
        claims = claim(case, (Part.IDLE, Part.LAUNCH), grown)
        if claims:
            yield _churn(case, grown, claims)


def watch(evidence: Evidence) -> Iterator[Finding]:
    """Serving processes whose cache made requests fail, also where no time was lost by it."""
    found: dict[int, list[FailedAllocation]] = defaultdict(list)
    for one in retries_of(evidence, evidence.window):
        found[one.process].append(one)
    for number, retries in found.items():
        process = evidence.processes.get(number)
        if process and kv_cache.is_proven(evidence, process, retries):
            yield _finding(evidence, process, retries, {})


def _churn(case: Case, grown: Growth, claims: Mapping[Bucket, int]) -> Finding:
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
        evidence={"calls per step": round(grown.count, 2), "baseline": round(grown.usual_count, 2)},
    )


def _finding(
    evidence: Evidence, process: Process, retries: Sequence[FailedAllocation], claims: Mapping[Bucket, int]
) -> Finding:
    worst = next(one for one in retries if kv_cache.in_cache_code(evidence, one.stack_hash))
    room = kv_cache.fullest(evidence, process, retries)
    used = room.used_ratio if room else 0.0
    cost = sum(one.end_ns - one.begin_ns for one in retries)
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
    find=find,
    watch=watch,
)
