"""The critical path had to reclaim memory first, or to reread evicted pages."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.host_memory.reclaim import MemoryPressure
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Link
from ingero.diagnose.limit_commands import cgroup_by_id, set_memory
from ingero.diagnose.samples.process_roles import data_workers, max_concurrent
from ingero.units import format_count, format_ns

CAUSE = "memory-pressure"


def explain(case: Case) -> Iterator[Finding]:
    """Reclaim and compaction on the critical path; with new reclaim also reads that the baseline did not need."""
    pressure = MemoryPressure(case)
    if not pressure.reclaims:
        return
    claims = pressure.reclaimed_on_path()
    reclaiming_ns = sum(claims.values())
    if pressure.is_reclaim_new:
        _add_unclaimed(case, claims, pressure.disk.paths.claim(pressure.is_reread))
    if claims:
        yield _finding(case, pressure, claims, reclaiming_ns)


def _add_unclaimed(case: Case, claims: dict[Bucket, int], more: dict[Bucket, int]) -> None:
    for bucket, ns in more.items():
        room = case.unclaimed.get(bucket, 0) - claims.get(bucket, 0)
        if min(ns, room) > 0:
            claims[bucket] = claims.get(bucket, 0) + min(ns, room)


def _finding(case: Case, pressure: MemoryPressure, claims: dict[Bucket, int], reclaiming_ns: int) -> Finding:
    lost = sum(claims.values())
    place = case.evidence.container_of(case.process.cgroup_id) or "its cgroup"
    memory_of = "the host" if pressure.limit == "host" else place
    reread_ns = lost - reclaiming_ns
    reclaims = pressure.reclaims
    parts = [f"{format_ns(reclaiming_ns)} freeing memory"] if reclaiming_ns else []
    parts += [f"{format_ns(reread_ns)} rereading evicted pages"] if reread_ns else []
    links = [
        Link(
            text=f"{format_count(len(reclaims))} times a critical-path thread first had to free memory of {memory_of}",
            seen_ns=sum(event.duration_ns or 0 for event in reclaims),
            structure="direct reclaim and compaction of the critical-path thread, or of the worker it waited for",
            order="inside the allocation that the work waited for",
        )
    ]
    if reread_ns:
        links.append(
            Link(
                text="pages that had been in memory were read from disk",
                seen_ns=reread_ns,
                expected_ns=0,
                structure="block reads of touched pages and of files that needed no disk in the baseline",
                order="reclaim had evicted them",
            )
        )
    return Finding(
        cause=CAUSE,
        resource="memory",
        root="host" if pressure.limit == "host" else str(case.process.cgroup_id or case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} to memory pressure in {memory_of}: {', '.join(parts)}",
        claims=claims,
        chain=tuple(links),
        fixes=tuple(_fixes(case, pressure.limit)),
        evidence={
            "reclaims": len(reclaims),
            "in reclaim (ns)": sum(event.duration_ns or 0 for event in reclaims),
            "freed (bytes)": sum(event.size_bytes or 0 for event in reclaims),
            "page faults read from disk": pressure.faults(),
            "limit": pressure.limit or "unknown",
        },
    )


def _fixes(case: Case, limit: str) -> Iterator[Fix]:
    if limit == "host":
        yield Fix(
            text="find the processes that use the host's memory", command="ps -eo pid,comm,rss --sort=-rss | head"
        )
    else:
        place = "" if case.evidence.container_of(case.process.cgroup_id) else " of its cgroup"
        yield Fix(
            text=f"raise the memory limit{place}: page cache counts into it",
            command=set_memory(cgroup_by_id(case.evidence, case.process.cgroup_id)),
        )
    workers = max_concurrent(data_workers(case.evidence, case.process), case.window)
    fewer = str(workers // 2) if workers > 1 else "<fewer>"
    now = f" than its {workers}" if workers > 1 else ""
    yield Fix(
        text=f"or use less: fewer workers{now}, smaller prefetch",
        command=f"DataLoader(num_workers={fewer}, prefetch_factor=1)",
    )


RULE = Rule(
    cause=CAUSE,
    title="memory pressure",
    order=15,
    needs=("sync_intervals", "offcpu", "HOST"),
    improves_with=("IO",),
    shows="reclaim and compaction of the critical-path thread and of the worker it waited for, each with its time and "
    "whose limit it was for; block reads of pages that had been in memory before",
    limits="work of the kernel's own reclaim threads costs the job only what others see as their CPU time; whether a "
    "file was in memory before is reported from the baseline, so that a bottleneck has its reclaim only",
    explain=explain,
)
