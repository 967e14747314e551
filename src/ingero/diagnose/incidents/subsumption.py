"""Subsumption: findings of one case that are symptoms of another are merged into it, so each fault is reported once.

Threads of one job contend for CPUs when one of them computes more: the contention belongs to that work. A thread that
writes a checkpoint runs at the same line at which it waits for the disk: that belongs to the disk, and what it
computes where it allocates belongs to the allocator, if that took more. Memory pressure slows launches, too. Input data
that come late because of a disk or a network belong to the disk or the network.
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
from ingero.diagnose.lost_time.time_ranges import REPORT_ONLY_JOINED
from ingero.units import format_ns

_ALLOCATOR_CAUSES = frozenset({allocation_churn.CAUSE, allocator_retry.CAUSE})
_MEMORY_CAUSES = frozenset({memory_pressure.CAUSE, major_page_faults.CAUSE})
_MAX_MINOR_RATIO = 0.25
_CAUSE_OF_STATE = {DISK: block_io.CAUSE, NETWORK: network_retransmit.CAUSE}
_COMPUTING_STATES = frozenset({ON_CPU, COLLECTING, PASSING})


def subsume(findings: Sequence[Finding], amount: Callable[[int], str] = format_ns) -> list[Finding]:
    """The findings of one case, each with the lost time of the findings that it subsumes.

    amount: formats lost time as the summaries do, so that a summary can state the sum instead.
    """
    found = list(findings)
    for cause, owner_of, more in (
        (host_bound.CAUSE, _owner_at_same_line, "computing at the same line"),
        (launch_bound.CAUSE, _memory_pressure_of, "inside launches"),
        (data_starvation.CAUSE, _data_source_of, "waiting for data of a worker that waited for it"),
        (self_oversubscription.CAUSE, _contended_work_of, "while its own threads waited for a CPU"),
    ):
        part = next((finding for finding in found if finding.cause == cause), None)
        owner = owner_of(part, found) if part else None
        if part and owner:
            found = [
                _merge_into(finding, part, more, amount) if finding is owner else finding
                for finding in found
                if finding is not part
            ]
    return [
        replace(finding, min_wall_ratio=REPORT_ONLY_JOINED) if _is_rest_of_waits(finding, found) else finding
        for finding in found
    ]


def explained_ratio(case: Case) -> float:
    """The share of a case's lost time that its findings explain."""
    explained_ns = sum(one.lost_ns for one in subsume(case.findings) if one.stands_alone)
    return min(1.0, explained_ns / max(case.lost_ns, 1))


def _owner_at_same_line(computing: Finding, found: Iterable[Finding]) -> Finding | None:
    """The finding about a disk, or a larger one about an allocator, at the line at which a thread computed."""
    here = [finding for finding in found if finding.line and computing.line and _place(finding) == _place(computing)]
    disk = (one for one in here if one.cause == block_io.CAUSE)
    allocator = (one for one in here if one.cause in _ALLOCATOR_CAUSES and one.lost_ns >= computing.lost_ns)
    return next(disk, None) or next(allocator, None)


def _memory_pressure_of(_launches: Finding, found: Iterable[Finding]) -> Finding | None:
    """The finding about memory pressure or major page faults, which slow all code that touches memory."""
    return next((finding for finding in found if finding.cause in _MEMORY_CAUSES), None)


def _data_source_of(starving: Finding, found: Iterable[Finding]) -> Finding | None:
    """The finding about the disk or network that the late worker waited for; None where starvation is a minor part."""
    source = _source_named_by(starving, found)
    return source if source and not _is_minor(starving, source) else None


def _source_named_by(starving: Finding, found: Iterable[Finding]) -> Finding | None:
    """The finding about the disk or network that the late worker waited for, if any."""
    cause = _CAUSE_OF_STATE.get(str(starving.evidence.get("worker was")))
    return next((finding for finding in found if finding.cause == cause), None)


def _is_minor(starving: Finding, source: Finding) -> bool:
    return starving.lost_ns <= _MAX_MINOR_RATIO * source.lost_ns


def _is_rest_of_waits(finding: Finding, found: Iterable[Finding]) -> bool:
    """Whether a finding is the minor time that a worker computed besides a disk or network wait that is reported."""
    source = _source_named_by(finding, found) if finding.cause == data_starvation.CAUSE and finding.claims else None
    return source is not None and _is_minor(finding, source)


def _place(finding: Finding) -> tuple[str, str] | None:
    return (finding.line.file, finding.line.function) if finding.line else None


def _contended_work_of(contention: Finding, found: Iterable[Finding]) -> Finding | None:
    """The larger finding about the work that the threads contend for CPUs to do; else the culprit thread's own."""
    busy = [finding for finding in found if finding is not contention and _computes(finding)]
    work = max(busy, key=lambda one: one.lost_ns, default=None)
    if work and work.lost_ns >= contention.lost_ns:
        return work
    return next((one for one in busy if _is_culprits_lock(contention, one)), None)


def _is_culprits_lock(contention: Finding, work: Finding) -> bool:
    """Whether the thread that used most CPU time held the interpreter lock, and for more than a minor time."""
    cpu_users = [(one.pid, one.name) for one in (*contention.culprits[:1], *work.culprits[:1])]
    is_same = len(cpu_users) == 2 and cpu_users[0] == cpu_users[1]
    return is_same and work.cause == gil.CAUSE and not _is_minor(work, contention)


def _computes(finding: Finding) -> bool:
    """Whether most of a finding's lost time is time in which the job's own threads ran."""
    ran = sum(ns for bucket, ns in finding.claims.items() if bucket.state == "run")
    is_held = finding.cause == gil.CAUSE  # by a thread that computes with it
    return 2 * ran > finding.lost_ns > 0 or finding.evidence.get("worker was") in _COMPUTING_STATES or is_held


def _merge_into(owner: Finding, part: Finding, more: str, amount: Callable[[int], str]) -> Finding:
    whole = owner.summary.replace(amount(owner.lost_ns), amount(owner.lost_ns + part.lost_ns), 1)
    return replace(
        owner,
        summary=f"{whole}; {format_ns(part.lost_ns)} of it {more}",
        claims=_sum((owner.claims, part.claims)),
        line=owner.line or part.line,
        chain=(*owner.chain, *(replace(one, text=f"with it, {one.text}") for one in part.chain[:1])),
        evidence={**owner.evidence, f"of it {part.cause} (ns)": part.lost_ns},
        waited_for_pids=tuple(sorted({*owner.waited_for_pids, *part.waited_for_pids})),
    )


def _sum(claims: Iterable[Mapping[Bucket, int]]) -> dict[Bucket, int]:
    total: dict[Bucket, int] = {}
    for one in claims:
        for bucket, ns in one.items():
            total[bucket] = total.get(bucket, 0) + ns
    return total
