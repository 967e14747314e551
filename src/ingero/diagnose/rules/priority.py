"""A thread on the path could have run, and processes that go before it by priority had the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.limit_commands import group_of, group_of_pid, has_own_branch
from ingero.diagnose.model import Bucket, Culprit, Finding, Fix, Link
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import (
    HOST_PARTS,
    PRIORITY,
    RUNNABLE,
    Taker,
    answers,
    claim,
    named,
    of_kind,
    pids,
    renice,
    weighty,
)
from ingero.diagnose.scheduler_facts import IDLE_POLICY, SchedulerFacts
from ingero.diagnose.weights import LOWEST_NICE, raise_own
from ingero.store.machine import Scheduling
from ingero.units import SECOND_NS

CAUSE = PRIORITY
MIN_NICE = 3  # steps of the nice value; each is a factor of 1.25, so that three are a factor of two
MIN_WEIGHT = 2.0  # the same factor of group weights
_READ_WITHIN_S = 2  # after it began to take time, a taker's priority is in the recording,
_TAKES_NS = 10_000_000  # if it takes more than that of a second
_REAL_TIME = ("fifo", "rr", "deadline")


def find(case: Case) -> Iterator[Finding]:
    """Runnable time that takers of a higher priority had."""
    facts = SchedulerFacts(case)
    victim = _victim(case, facts)
    if victim is None:
        return
    found = answers(case)
    ahead: dict[int, tuple[Culprit, str]] = {}
    share = on_path = 0.0
    for kind in (Taker.OTHER, Taker.NEIGHBOUR):
        takers = _known(case, facts, of_kind(case, kind))
        total = sum(one.lost_ns for one in takers)
        mine = {}
        for one in takers:
            why = _goes_before(case, facts, one, victim, is_neighbour=kind is Taker.NEIGHBOUR)
            if why:
                mine[one.pid] = (one, why)
        part = sum(one.lost_ns for one, _ in mine.values()) / max(total, 1)
        share, on_path = share + found.shares[kind] * part, on_path + found.on_path[kind] * part
        ahead |= mine
    claims = claim(case, share, on_path)
    if claims:
        yield _finding(case, facts, victim, list(ahead.values()), claims)


def _victim(case: Case, facts: SchedulerFacts) -> Scheduling | None:
    """What held for the thread that waited most: the process's own, or the worker on its path."""
    own_ns = case.total(HOST_PARTS, RUNNABLE)
    waiting = [one for one in case.empty_paths if one.depth > 0 and one.state == "runq" and one.pid in case.family]
    if waiting and sum(one.duration_ns for one in waiting) > own_ns:
        worst = max(waiting, key=lambda one: one.duration_ns)
        return facts.in_force(worst.pid, worst.tid)
    return facts.in_force(case.process.pid, facts.path_thread)


def _known(case: Case, facts: SchedulerFacts, takers: list[Culprit]) -> list[Culprit]:
    """Those whose priority can be known. In a loss that has just begun they speak for the others, if they took more."""
    age = (case.evidence.window.end_ns - case.window.begin_ns) / SECOND_NS
    if age >= _READ_WITHIN_S:
        return takers
    least_ns = _TAKES_NS * max(age, 1)
    known = [one for one in takers if one.lost_ns <= least_ns or facts.history(one.pid, one.pid)]
    took_ns, all_ns = (sum(one.lost_ns for one in some) for some in (known, takers))
    return known if 2 * took_ns > all_ns else takers


def _goes_before(case: Case, facts: SchedulerFacts, taker: Culprit, victim: Scheduling, *, is_neighbour: bool) -> str:
    """By what a taker goes before the victim; "" where by nothing that is known.

    A nice value and the policy "idle" count within one control group only; where autogroup is on, within one session,
    which is not recorded.
    """
    row = facts.in_force(taker.pid, taker.pid)
    if row is None:
        return ""
    if row.policy in _REAL_TIME and victim.policy not in _REAL_TIME:
        return f"policy {row.policy} {row.rt_priority or ''}".rstrip()
    if is_neighbour:
        return ""
    if _groups(case, taker.pid) <= {case.process.cgroup_id or 0, 0}:
        if victim.policy == IDLE_POLICY and row.policy != IDLE_POLICY:
            return f"policy {row.policy} against idle"
        return f"nice {row.nice} against {victim.nice}" if victim.nice - row.nice >= MIN_NICE else ""
    is_heavier = (row.cpu_weight or 0) >= MIN_WEIGHT * (victim.cpu_weight or math.inf)
    is_heavier = is_heavier and _are_side_by_side(case, taker)
    return f"CPU weight {row.cpu_weight} against {victim.cpu_weight}" if is_heavier else ""


def _are_side_by_side(case: Case, taker: Culprit) -> bool:
    """Whether the groups of both are weighed against each other; else groups around them are, of unknown weights."""
    own, theirs = group_of(case.evidence, case.process.cgroup_id), group_of_pid(case.evidence, taker.pid)
    return has_own_branch(own, theirs) and has_own_branch(theirs, own)


def _groups(case: Case, pid: int) -> set[int]:
    """The control groups in which a taker was seen."""
    return {
        one.culprit_cgroup_id or 0
        for number in case.members
        for one in case.evidence.culprits((case.window,), number)
        if one.culprit_pid == pid
    }


def _finding(
    case: Case,
    facts: SchedulerFacts,
    victim: Scheduling,
    ahead: list[tuple[Culprit, str]],
    claims: dict[Bucket, int],
) -> Finding:
    lost = sum(claims.values())
    takers = weighty([one for one, _ in ahead])
    why = next(text for one, text in ahead if one.pid == takers[0].pid)
    before = [row.nice for row in facts.history(victim.pid, victim.tid) if row.nice != victim.nice]
    reniced = f"; nice of {victim.pid} was {before[-1]} before" if before else ""
    return Finding(
        cause=CAUSE,
        resource="cpu",
        root="host",
        summary=f"{case.who} lost {case.amount(lost)} waiting for a CPU while {named(takers)} went before it "
        f"({why}{reniced})",
        claims=claims,
        culprits=tuple(takers),
        chain=(
            Link(
                text=f"the thread on its path was runnable, and who ran has a higher priority: {why}",
                seen_ns=lost,
                structure="the run-queue clocks within the epochs, and the priorities that were in force",
                order="each wait was charged to whoever ran on that CPU during it",
            ),
        ),
        fixes=tuple(_fixes(case, victim, takers, why)),
        evidence={
            "victim nice": victim.nice,
            "victim policy": victim.policy,
            "victim cpu weight": victim.cpu_weight,
            "taker": why,
        },
    )


def _fixes(case: Case, victim: Scheduling, takers: list[Culprit], why: str) -> Iterator[Fix]:
    if why.startswith("nice"):
        if victim.nice > 0:
            yield Fix(text="give the victim its priority back", command=renice(0, [victim.pid]))
        yield Fix(
            text="or lower the priority of the others",
            command=renice(LOWEST_NICE, (one.pid for one in takers)),
        )
    elif why.startswith("CPU weight"):
        yield raise_own(case, takers)
    elif victim.policy == IDLE_POLICY:
        yield Fix(text="give the victim its policy back", command=f"sudo chrt --other -a -p 0 {victim.pid}")
    else:
        yield Fix(
            text="take the real-time policy from the others", command=f"sudo chrt --other -p 0 {pids(takers[:1])}"
        )


RULE = Rule(
    cause=CAUSE,
    title="processes of a higher priority had the CPU",
    order=26,
    needs=("epochs", "culprits", "scheduling"),
    shows="as cpu-contention, with the nice values, policies or group weights of the waiting thread and of who ran",
    limits="nice values mean something within one control group, and with autogroup within one session: sessions are "
    "not recorded, so that a nice value of another session is believed; who takes less than 10 ms a second is not "
    "looked at",
    find=find,
)
