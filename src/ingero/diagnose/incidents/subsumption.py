"""Findings of one case that are one incident, so that nobody is told of one fault twice.

Threads of one job crowd each other when one of them comes to compute more: that belongs to the work. A thread that
writes a checkpoint is on a CPU at the same line at which it waits for the disk: that belongs to the disk, and what it
computes where it allocates to the allocator, if that took more. Short memory slows launches, too. Data that come late
because of a disk or a network are late for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu import self_oversubscription
from ingero.diagnose.causes.cuda_calls import launch_bound
from ingero.diagnose.causes.data import data_starvation
from ingero.diagnose.causes.data.producers import COLLECTING, DISK, NETWORK, ON_CPU, PASSING
from ingero.diagnose.causes.gpu_memory import allocation_churn, allocator_retry
from ingero.diagnose.causes.host_code import gil, host_bound
from ingero.diagnose.causes.host_memory import major_page_faults, memory_pressure
from ingero.diagnose.causes.network import network_retransmit
from ingero.diagnose.causes.storage import block_io
from ingero.diagnose.findings import Bucket, Finding
from ingero.diagnose.lost_time.time_ranges import NEVER_RATIO
from ingero.units import format_ns

_OF_ALLOCATOR = frozenset({allocation_churn.CAUSE, allocator_retry.CAUSE})
_OF_MEMORY = frozenset({memory_pressure.CAUSE, major_page_faults.CAUSE})
_LITTLE = 0.25
_SOURCES = {DISK: block_io.CAUSE, NETWORK: network_retransmit.CAUSE}
_AT_WORK = frozenset({ON_CPU, COLLECTING, PASSING})


def joined(findings: Sequence[Finding], amount: Callable[[int], str] = format_ns) -> list[Finding]:
    """The findings of one case, each with the lost time of those that belong to it.

    amount: lost time as their summaries say it, so that they say all of it.
    """
    found = list(findings)
    for cause, owner_of, more in (
        (host_bound.CAUSE, _same_line_of, "computing at the same line"),
        (launch_bound.CAUSE, _pressure_of, "inside launches"),
        (data_starvation.CAUSE, _source_of, "waiting for data of a worker that waited for it"),
        (self_oversubscription.CAUSE, _work_of, "while its own threads waited for a CPU"),
    ):
        part = next((one for one in found if one.cause == cause), None)
        owner = owner_of(part, found) if part else None
        if part and owner:
            found = [_join(one, part, more, amount) if one is owner else one for one in found if one is not part]
    return [replace(one, least_ratio=NEVER_RATIO) if _is_rest_of_waits(one, found) else one for one in found]


def explained_ratio(case: Case) -> float:
    """Which share of a case's lost time its findings own."""
    owned = sum(one.lost_ns for one in joined(case.findings) if one.is_whole)
    return min(1.0, owned / max(case.lost_ns, 1))


def _same_line_of(computing: Finding, found: Iterable[Finding]) -> Finding | None:
    """The wait for a disk, or the larger one for an allocator, at whose line a thread computed."""
    here = [one for one in found if one.line and computing.line and _place(one) == _place(computing)]
    disk = (one for one in here if one.cause == block_io.CAUSE)
    allocator = (one for one in here if one.cause in _OF_ALLOCATOR and one.lost_ns >= computing.lost_ns)
    return next(disk, None) or next(allocator, None)


def _pressure_of(_launches: Finding, found: Iterable[Finding]) -> Finding | None:
    """What slows whatever touches memory."""
    return next((one for one in found if one.cause in _OF_MEMORY), None)


def _source_of(starving: Finding, found: Iterable[Finding]) -> Finding | None:
    """What the worker that was late waited for itself; not for the little that it computed in the same waits."""
    source = _named_source(starving, found)
    return source if source and not _is_little(starving, source) else None


def _named_source(starving: Finding, found: Iterable[Finding]) -> Finding | None:
    """The finding about what the worker waited for itself."""
    cause = _SOURCES.get(str(starving.evidence.get("worker was")))
    return next((one for one in found if one.cause == cause), None)


def _is_little(starving: Finding, source: Finding) -> bool:
    return starving.lost_ns <= _LITTLE * source.lost_ns


def _is_rest_of_waits(one: Finding, found: Iterable[Finding]) -> bool:
    """Whether it is the little that a worker computed while it waited for a disk or a network that is told."""
    source = _named_source(one, found) if one.cause == data_starvation.CAUSE and one.claims else None
    return source is not None and _is_little(one, source)


def _place(finding: Finding) -> tuple[str, str] | None:
    return (finding.line.file, finding.line.function) if finding.line else None


def _work_of(contention: Finding, found: Iterable[Finding]) -> Finding | None:
    """The larger finding whose work the threads crowd each other for; or that of the very thread that took most."""
    busy = [one for one in found if one is not contention and _computes(one)]
    work = max(busy, key=lambda one: one.lost_ns, default=None)
    if work and work.lost_ns >= contention.lost_ns:
        return work
    return next((one for one in busy if _is_of_who_took(contention, one)), None)


def _is_of_who_took(contention: Finding, work: Finding) -> bool:
    """Whether the thread that took most of the CPUs held the interpreter lock, for more than a moment."""
    cpu_users = [(one.pid, one.name) for one in (*contention.culprits[:1], *work.culprits[:1])]
    is_same = len(cpu_users) == 2 and cpu_users[0] == cpu_users[1]
    return is_same and work.cause == gil.CAUSE and not _is_little(work, contention)


def _computes(finding: Finding) -> bool:
    """Whether most of it is time in which the job's own threads ran."""
    ran = sum(ns for bucket, ns in finding.claims.items() if bucket.state == "run")
    is_held = finding.cause == gil.CAUSE  # by a thread that computes with it
    return 2 * ran > finding.lost_ns > 0 or finding.evidence.get("worker was") in _AT_WORK or is_held


def _join(owner: Finding, part: Finding, more: str, amount: Callable[[int], str]) -> Finding:
    whole = owner.summary.replace(amount(owner.lost_ns), amount(owner.lost_ns + part.lost_ns), 1)
    return replace(
        owner,
        summary=f"{whole}; {format_ns(part.lost_ns)} of it {more}",
        claims=_sum((owner.claims, part.claims)),
        line=owner.line or part.line,
        chain=(*owner.chain, *(replace(one, text=f"with it, {one.text}") for one in part.chain[:1])),
        evidence={**owner.evidence, f"of it {part.cause} (ns)": part.lost_ns},
        waits_for=tuple(sorted({*owner.waits_for, *part.waits_for})),
    )


def _sum(claims: Iterable[Mapping[Bucket, int]]) -> dict[Bucket, int]:
    total: dict[Bucket, int] = {}
    for one in claims:
        for bucket, ns in one.items():
            total[bucket] = total.get(bucket, 0) + ns
    return total
