"""Somebody on the critical path had to free memory first, or read again what had been thrown out of it."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cgroup_commands import group_of, set_memory
from ingero.diagnose.causes.host_memory.reclaim import Pressure
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Link
from ingero.diagnose.samples.process_roles import at_once, data_workers
from ingero.units import format_count, format_ns

CAUSE = "memory-pressure"


def find(case: Case) -> Iterator[Finding]:
    """Reclaim and compaction on the critical path; beside new reclaim also reads of what needed no disk before."""
    pressure = Pressure(case)
    if not pressure.reclaims:
        return
    claims = pressure.reclaimed_on_path()
    reclaiming_ns = sum(claims.values())
    if pressure.is_new:
        _add(case, claims, pressure.disk.paths.claim(pressure.read_again))
    if claims:
        yield _finding(case, pressure, claims, reclaiming_ns)


def _add(case: Case, claims: dict[Bucket, int], more: dict[Bucket, int]) -> None:
    for bucket, ns in more.items():
        room = case.left.get(bucket, 0) - claims.get(bucket, 0)
        if min(ns, room) > 0:
            claims[bucket] = claims.get(bucket, 0) + min(ns, room)


def _finding(case: Case, pressure: Pressure, claims: dict[Bucket, int], reclaiming_ns: int) -> Finding:
    lost = sum(claims.values())
    place = case.evidence.container_of(case.process.cgroup_id) or "its cgroup"
    whose = "the host" if pressure.limit == "host" else place
    read_again = lost - reclaiming_ns
    reclaims = pressure.reclaims
    doing = [f"{format_ns(reclaiming_ns)} freeing memory"] if reclaiming_ns else []
    doing += [f"{format_ns(read_again)} rereading evicted pages"] if read_again else []
    links = [
        Link(
            text=f"{format_count(len(reclaims))} times a critical-path thread first had to free memory of {whose}",
            seen_ns=sum(one.duration_ns or 0 for one in reclaims),
            structure="direct reclaim and compaction of the critical-path thread, or of the worker it waited for",
            order="inside the allocation that the work waited for",
        )
    ]
    if read_again:
        links.append(
            Link(
                text="pages that had been in memory were read from disk",
                seen_ns=read_again,
                expected_ns=0,
                structure="block reads of touched pages and of files that needed no disk in the baseline",
                order="reclaim had evicted them",
            )
        )
    return Finding(
        cause=CAUSE,
        resource="memory",
        root="host" if pressure.limit == "host" else str(case.process.cgroup_id or case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} to memory pressure in {whose}: {', '.join(doing)}",
        claims=claims,
        chain=tuple(links),
        fixes=tuple(_fixes(case, pressure.limit)),
        evidence={
            "reclaims": len(reclaims),
            "in reclaim (ns)": sum(one.duration_ns or 0 for one in reclaims),
            "freed (bytes)": sum(one.size_bytes or 0 for one in reclaims),
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
            command=set_memory(group_of(case.evidence, case.process.cgroup_id)),
        )
    workers = at_once(data_workers(case.evidence, case.process), case.window)
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
    wants=("IO",),
    shows="reclaim and compaction of the critical-path thread and of the worker it waited for, each with its time and "
    "whose limit it was for; block reads of pages that had been in memory before",
    limits="work of the kernel's own reclaim threads costs the job only what others see as their CPU time; whether a "
    "file was in memory before is reported from the baseline, so that a bottleneck has its reclaim only",
    find=find,
)
