"""A critical-path thread could have run, and processes that go before it by priority had the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cgroup_commands import group_of, group_of_pid, has_own_branch
from ingero.diagnose.causes.cpu.cpu_takers import (
    HOST_PARTS,
    PRIORITY,
    RUNNABLE,
    CpuUser,
    answers,
    claim,
    named,
    of_kind,
    pids,
    renice,
    weighty,
)
from ingero.diagnose.causes.cpu.scheduling import IDLE_POLICY, SchedulerFacts
from ingero.diagnose.causes.cpu.weight_fixes import LOWEST_NICE, raise_own
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Culprit, Finding, Fix, Link
from ingero.store.machine import Scheduling
from ingero.units import SECOND_NS

CAUSE = PRIORITY
MIN_NICE = 3  # steps of the nice value; each is a factor of 1.25, so that three are a factor of two
MIN_WEIGHT = 2.0  # the same factor of group weights
_READ_WITHIN_S = 2  # after it began to take time, a culprit's priority is in the recording,
_TAKES_NS = 10_000_000  # if it takes more than that of a second
_REAL_TIME = ("fifo", "rr", "deadline")


def find(case: Case) -> Iterator[Finding]:
    """Runnable time that culprits of a higher priority had."""
    facts = SchedulerFacts(case)
    affected = _affected(case, facts)
    if affected is None:
        return
    found = answers(case)
    ahead: dict[int, tuple[Culprit, str]] = {}
    share = on_path = 0.0
    for kind in (CpuUser.OTHER, CpuUser.NEIGHBOR):
        cpu_users = _known(case, facts, of_kind(case, kind))
        total = sum(one.lost_ns for one in cpu_users)
        mine = {}
        for one in cpu_users:
            why = _goes_before(case, facts, one, affected, is_neighbor=kind is CpuUser.NEIGHBOR)
            if why:
                mine[one.pid] = (one, why)
        part = sum(one.lost_ns for one, _ in mine.values()) / max(total, 1)
        share, on_path = share + found.shares[kind] * part, on_path + found.on_path[kind] * part
        ahead |= mine
    claims = claim(case, share, on_path)
    if claims:
        yield _finding(case, facts, affected, list(ahead.values()), claims)


def _affected(case: Case, facts: SchedulerFacts) -> Scheduling | None:
    """What held for the thread that waited most: the process's own, or the worker on its path."""
    own_ns = case.total(HOST_PARTS, RUNNABLE)
    waiting = [one for one in case.empty_paths if one.depth > 0 and one.state == "runq" and one.pid in case.family]
    if waiting and sum(one.duration_ns for one in waiting) > own_ns:
        worst = max(waiting, key=lambda one: one.duration_ns)
        return facts.in_force(worst.pid, worst.tid)
    return facts.in_force(case.process.pid, facts.path_thread)


def _known(case: Case, facts: SchedulerFacts, cpu_users: list[Culprit]) -> list[Culprit]:
    """Those whose priority can be known. In lost time just begun they speak for the others, if they took more."""
    age = (case.evidence.window.end_ns - case.window.begin_ns) / SECOND_NS
    if age >= _READ_WITHIN_S:
        return cpu_users
    least_ns = _TAKES_NS * max(age, 1)
    known = [one for one in cpu_users if one.lost_ns <= least_ns or facts.history(one.pid, one.pid)]
    took_ns, all_ns = (sum(one.lost_ns for one in some) for some in (known, cpu_users))
    return known if 2 * took_ns > all_ns else cpu_users


def _goes_before(
    case: Case, facts: SchedulerFacts, cpu_user: Culprit, affected: Scheduling, *, is_neighbor: bool
) -> str:
    """By what a culprit goes before the affected process; "" where by nothing that is known.

    A nice value and the policy "idle" count within one control group only; where autogroup is on, within one session,
    which is not recorded.
    """
    row = facts.in_force(cpu_user.pid, cpu_user.pid)
    if row is None:
        return ""
    if row.policy in _REAL_TIME and affected.policy not in _REAL_TIME:
        return f"policy {row.policy} {row.rt_priority or ''}".rstrip()
    if is_neighbor:
        return ""
    if _groups(case, cpu_user.pid) <= {case.process.cgroup_id or 0, 0}:
        if affected.policy == IDLE_POLICY and row.policy != IDLE_POLICY:
            return f"policy {row.policy} vs idle"
        return f"nice {row.nice} vs {affected.nice}" if affected.nice - row.nice >= MIN_NICE else ""
    is_heavier = (row.cpu_weight or 0) >= MIN_WEIGHT * (affected.cpu_weight or math.inf)
    is_heavier = is_heavier and _are_side_by_side(case, cpu_user)
    return f"CPU weight {row.cpu_weight} vs {affected.cpu_weight}" if is_heavier else ""


def _are_side_by_side(case: Case, cpu_user: Culprit) -> bool:
    """Whether the groups of both are weighed against each other; else groups around them are, of unknown weights."""
    own, theirs = group_of(case.evidence, case.process.cgroup_id), group_of_pid(case.evidence, cpu_user.pid)
    return has_own_branch(own, theirs) and has_own_branch(theirs, own)


def _groups(case: Case, pid: int) -> set[int]:
    """The control groups in which a culprit was seen."""
    return {
        one.culprit_cgroup_id or 0
        for number in case.members
        for one in case.evidence.culprits((case.window,), number)
        if one.culprit_pid == pid
    }


def _finding(
    case: Case,
    facts: SchedulerFacts,
    affected: Scheduling,
    ahead: list[tuple[Culprit, str]],
    claims: dict[Bucket, int],
) -> Finding:
    lost = sum(claims.values())
    cpu_users = weighty([one for one, _ in ahead])
    why = next(text for one, text in ahead if one.pid == cpu_users[0].pid)
    before = [row.nice for row in facts.history(affected.pid, affected.tid) if row.nice != affected.nice]
    reniced = f"; nice of {affected.pid} was {before[-1]} before" if before else ""
    return Finding(
        cause=CAUSE,
        resource="cpu",
        root="host",
        summary=f"{case.who} lost {case.amount(lost)} waiting for a CPU while {named(cpu_users)} ran ahead of it "
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
            yield Fix(text="restore the priority of the affected process", command=renice(0, [affected.pid]))
        yield Fix(
            text="or lower the priority of the others",
            command=renice(LOWEST_NICE, (one.pid for one in cpu_users)),
        )
    elif why.startswith("CPU weight"):
        yield raise_own(case, cpu_users)
    elif affected.policy == IDLE_POLICY:
        yield Fix(
            text="restore the scheduling policy of the affected process",
            command=f"sudo chrt --other -a -p 0 {affected.pid}",
        )
    else:
        yield Fix(
            text="remove the real-time policy of the others", command=f"sudo chrt --other -p 0 {pids(cpu_users[:1])}"
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
    find=find,
)
