"""A critical-path thread was runnable while processes of higher priority had the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import (
    HOST_PARTS,
    PRIORITY,
    RUNNABLE,
    CpuUser,
    blame_runnable_time,
    claim_runnable,
    culprit_names,
    culprits_of_kind,
    main_culprits,
    pid_list,
    renice_command,
)
from ingero.diagnose.causes.cpu.scheduling import IDLE_POLICY, SchedulerFacts
from ingero.diagnose.causes.cpu.weight_fixes import LOWEST_NICE, raise_own_weight
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Culprit, Finding, Fix, Link
from ingero.diagnose.limit_commands import cgroup_by_id, cgroup_of_pid, is_weighed_directly
from ingero.store.machine import Scheduling
from ingero.units import SECOND_NS

CAUSE = PRIORITY
MIN_NICE = 3  # steps of the nice value; each is a factor of 1.25, so that three are a factor of two
MIN_WEIGHT = 2.0  # times the affected cgroup's CPU weight: the same factor as three nice steps
_PRIORITY_READ_AFTER_S = 2  # a culprit's priority is recorded this long after it began to use CPU time,
_MIN_CPU_NS_PER_S = 10_000_000  # if it uses more CPU time than this
_REAL_TIME_POLICIES = ("fifo", "rr", "deadline")


def explain(case: Case) -> Iterator[Finding]:
    """Run-queue time while culprits of a higher priority ran."""
    facts = SchedulerFacts(case)
    affected = _affected_scheduling(case, facts)
    if affected is None:
        return
    blame = blame_runnable_time(case)
    ahead: dict[int, tuple[Culprit, str]] = {}
    share = on_path = 0.0
    for kind in (CpuUser.OTHER, CpuUser.NEIGHBOR):
        cpu_users = _with_known_priority(case, facts, culprits_of_kind(case, kind))
        total = sum(user.lost_ns for user in cpu_users)
        preferred = {}
        for user in cpu_users:
            why = _why_it_runs_first(case, facts, user, affected, is_neighbor=kind is CpuUser.NEIGHBOR)
            if why:
                preferred[user.pid] = (user, why)
        part = sum(user.lost_ns for user, _ in preferred.values()) / max(total, 1)
        share, on_path = share + blame.shares[kind] * part, on_path + blame.on_path[kind] * part
        ahead |= preferred
    claims = claim_runnable(case, share, on_path)
    if claims:
        yield _finding(case, facts, affected, list(ahead.values()), claims)


def _affected_scheduling(case: Case, facts: SchedulerFacts) -> Scheduling | None:
    """Scheduling attributes of the thread that waited most: the process's own, or a worker on its critical path."""
    own_ns = case.total(HOST_PARTS, RUNNABLE)
    waiting = [wait for wait in case.idle_paths if wait.depth > 0 and wait.state == "runq" and wait.pid in case.family]
    if waiting and sum(wait.duration_ns for wait in waiting) > own_ns:
        worst = max(waiting, key=lambda wait: wait.duration_ns)
        return facts.in_force(worst.pid, worst.tid)
    return facts.in_force(case.process.pid, facts.path_thread)


def _with_known_priority(case: Case, facts: SchedulerFacts, cpu_users: list[Culprit]) -> list[Culprit]:
    """Culprits whose priority can be known; at the start of a case they stand for all, if they took more than half."""
    age = (case.evidence.window.end_ns - case.window.begin_ns) / SECOND_NS
    if age >= _PRIORITY_READ_AFTER_S:
        return cpu_users
    least_ns = _MIN_CPU_NS_PER_S * max(age, 1)
    known = [user for user in cpu_users if user.lost_ns <= least_ns or facts.history(user.pid, user.pid)]
    took_ns, all_ns = (sum(user.lost_ns for user in some) for some in (known, cpu_users))
    return known if 2 * took_ns > all_ns else cpu_users


def _why_it_runs_first(
    case: Case, facts: SchedulerFacts, cpu_user: Culprit, affected: Scheduling, *, is_neighbor: bool
) -> str:
    """Why a culprit has priority over the affected process, in words; "" where nothing known gives it priority.

    Nice values and the idle policy apply within one cgroup only and, with autogroup, within one session, which is not
    recorded.
    """
    row = facts.in_force(cpu_user.pid, cpu_user.pid)
    if row is None:
        return ""
    if row.policy in _REAL_TIME_POLICIES and affected.policy not in _REAL_TIME_POLICIES:
        return f"policy {row.policy} {row.rt_priority or ''}".rstrip()
    if is_neighbor:
        return ""
    if _cgroups_of(case, cpu_user.pid) <= {case.process.cgroup_id or 0, 0}:
        if affected.policy == IDLE_POLICY and row.policy != IDLE_POLICY:
            return f"policy {row.policy} vs idle"
        return f"nice {row.nice} vs {affected.nice}" if affected.nice - row.nice >= MIN_NICE else ""
    is_heavier = (row.cpu_weight or 0) >= MIN_WEIGHT * (affected.cpu_weight or math.inf)
    is_heavier = is_heavier and _are_weighed_directly(case, cpu_user)
    return f"CPU weight {row.cpu_weight} vs {affected.cpu_weight}" if is_heavier else ""


def _are_weighed_directly(case: Case, cpu_user: Culprit) -> bool:
    """Whether the cgroups of both compete directly; otherwise ancestors of unknown weight do."""
    own, theirs = cgroup_by_id(case.evidence, case.process.cgroup_id), cgroup_of_pid(case.evidence, cpu_user.pid)
    return is_weighed_directly(own, theirs) and is_weighed_directly(theirs, own)


def _cgroups_of(case: Case, pid: int) -> set[int]:
    """Ids of the cgroups in which a culprit was seen."""
    return {
        row.culprit_cgroup_id or 0
        for number in case.members
        for row in case.evidence.culprits((case.window,), number)
        if row.culprit_pid == pid
    }


def _finding(
    case: Case,
    facts: SchedulerFacts,
    affected: Scheduling,
    ahead: list[tuple[Culprit, str]],
    claims: dict[Bucket, int],
) -> Finding:
    lost = sum(claims.values())
    cpu_users = main_culprits([user for user, _ in ahead])
    why = next(text for user, text in ahead if user.pid == cpu_users[0].pid)
    before = [row.nice for row in facts.history(affected.pid, affected.tid) if row.nice != affected.nice]
    reniced = f"; nice of {affected.pid} was {before[-1]} before" if before else ""
    return Finding(
        cause=CAUSE,
        resource="cpu",
        root="host",
        summary=f"{case.who} lost {case.amount(lost)} waiting for a CPU while {culprit_names(cpu_users)} ran ahead "
        "of it "
        f"({why}{reniced})",
        claims=claims,
        culprits=tuple(cpu_users),
        chain=(
            Link(
                text=f"the critical-path thread was runnable, and the processes that ran have a higher priority: {why}",
                seen_ns=lost,
                structure="exact run-queue time inside each sync interval, and the priorities in force",
                order="each wait is attributed to the process that ran on that CPU meanwhile",
            ),
        ),
        fixes=tuple(_fixes(case, affected, cpu_users, why)),
        evidence={
            "affected process nice": affected.nice,
            "affected process policy": affected.policy,
            "affected process cpu weight": affected.cpu_weight,
            "priority": why,
        },
    )


def _fixes(case: Case, affected: Scheduling, cpu_users: list[Culprit], why: str) -> Iterator[Fix]:
    if why.startswith("nice"):
        if affected.nice > 0:
            yield Fix(text="restore the priority of the affected process", command=renice_command(0, [affected.pid]))
        yield Fix(
            text="or lower the priority of the others",
            command=renice_command(LOWEST_NICE, (user.pid for user in cpu_users)),
        )
    elif why.startswith("CPU weight"):
        yield raise_own_weight(case, cpu_users)
    elif affected.policy == IDLE_POLICY:
        yield Fix(
            text="restore the scheduling policy of the affected process",
            command=f"sudo chrt --other -a -p 0 {affected.pid}",
        )
    else:
        yield Fix(
            text="remove the real-time policy of the others",
            command=f"sudo chrt --other -p 0 {pid_list(cpu_users[:1])}",
        )


RULE = Rule(
    cause=CAUSE,
    title="processes with a higher priority were using the CPU",
    order=26,
    needs=("sync_intervals", "culprits", "scheduling"),
    shows="as cpu-contention, with the nice values, policies or cgroup weights of the waiting thread and of the "
    "processes that ran",
    limits="nice values mean something within one cgroup, and with autogroup within one session: sessions are not "
    "recorded, so that a nice value of another session is taken at face value; processes that use less than 10 ms per "
    "second are not checked",
    explain=explain,
)
