"""A critical-path thread was runnable while CPUs outside its affinity mask were idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.kernel_waits import PathWaits
from ingero.diagnose.causes.cpu.cpu_takers import HOST_PARTS, RUNNABLE, culprit_names, main_culprits
from ingero.diagnose.causes.cpu.cpu_usage import cpu_use_growth
from ingero.diagnose.causes.cpu.numa import near_cpus
from ingero.diagnose.causes.cpu.scheduling import CpuSet, SchedulerFacts
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Link
from ingero.diagnose.lost_time.time_ranges import NORMAL_VARIATION_RATIO
from ingero.store.vocabulary import IDLE_PID
from ingero.units import format_cpu_list, format_percent, parse_cpu_list

CAUSE = "cpu-affinity"
MIN_IDLE = 0.2  # of the time; a CPU that was idle less would hardly have helped


@dataclass(frozen=True, slots=True)
class _ConfinedThread:
    """A thread whose affinity mask excludes some CPUs.

    mask_before: the wider mask it had earlier; "" if none was seen. share: of its run-queue time, what the CPUs outside
    its mask had room for.
    """

    pid: int
    tid: int
    mask: CpuSet
    mask_before: str  # the wider mask that it had before; "" where none was seen
    share: float


def explain(case: Case) -> Iterator[Finding]:
    """Run-queue time of threads with a restricted mask, as far as CPUs outside the mask had room for them."""
    facts = SchedulerFacts(case)
    own_thread = _confined_thread(facts, case.process.pid, facts.path_thread)
    workers = _confined_workers(case, facts)
    own_claims, worker_claims = dict[Bucket, int](), dict[Bucket, int]()
    if own_thread:
        own_claims = case.claimable(HOST_PARTS, RUNNABLE, case.total(HOST_PARTS, RUNNABLE) * own_thread.share)
    if workers:
        worker_claims = PathWaits(case).claim_parts(
            lambda segment: (
                segment.duration_ns * workers[segment.tid].share
                if segment.state == "runq" and segment.tid in workers
                else 0.0
            )
        )
    confined = list(workers.values())
    if own_thread and sum(own_claims.values()):
        confined.insert(0 if sum(own_claims.values()) >= sum(worker_claims.values()) else len(confined), own_thread)
    claims = {bucket: ns for bucket, ns in (own_claims | worker_claims).items() if ns > 0}
    if claims:
        yield _finding(case, facts, claims, confined)


def _confined_workers(case: Case, facts: SchedulerFacts) -> dict[int, _ConfinedThread]:
    """Workers with a restricted mask that waited for a CPU while they were waited for, by tid, longest wait first."""
    waited: Counter[tuple[int, int]] = Counter()
    for wait in case.idle_paths:
        if wait.depth > 0 and wait.state == "runq" and wait.pid in case.family:
            waited[wait.pid, wait.tid] += wait.duration_ns
    by_tid = {tid: _confined_thread(facts, pid, tid) for (pid, tid), _ in waited.most_common()}
    return {tid: thread for tid, thread in by_tid.items() if thread}


def _confined_thread(facts: SchedulerFacts, pid: int, tid: int) -> _ConfinedThread | None:
    row = facts.in_force(pid, tid)
    mask = parse_cpu_list(row.cpus_allowed) if row else frozenset()
    outside = facts.all_cpus - mask
    if row is None or not mask or not outside:
        return None
    wider = [row for row in facts.history(pid, tid) if parse_cpu_list(row.cpus_allowed) > mask]
    if not wider and facts.case.evidence.container_of(facts.case.process.cgroup_id):
        return None  # a container's CPUs are its allotment: the idle ones may be others'
    idle_share = facts.idle_share(outside)
    if idle_share < MIN_IDLE:
        return None
    if not wider:
        return _ConfinedThread(pid, tid, mask, "", idle_share)
    return _ConfinedThread(pid, tid, mask, wider[-1].cpus_allowed, max(idle_share, _unchanged_use_ratio(facts.case)))


def _unchanged_use_ratio(case: Case) -> float:
    """How much of one CPU (0-1) others left as free as in the baseline, where the wider mask was sufficient."""
    grown = cpu_use_growth(case)
    return 1 - min(max(grown.others + grown.agent, 0.0), 1.0) if grown else 0.0


def _finding(case: Case, facts: SchedulerFacts, claims: dict[Bucket, int], confined: list[_ConfinedThread]) -> Finding:
    lost, worst = sum(claims.values()), confined[0]
    outside = facts.all_cpus - worst.mask
    mask, others = format_cpu_list(worst.mask), format_cpu_list(outside)
    is_own = worst.pid == case.process.pid
    name = "it" if is_own else f"its worker {case.evidence.name_of_pid(worst.pid)} [{worst.pid}]"
    mask_before = f", before {worst.mask_before}" if worst.mask_before else ""
    cpu_users = main_culprits([user for user in case.cpu_users if user.pid > IDLE_PID and user.name])
    instead = f"; {culprit_names(cpu_users)} ran there" if cpu_users else ""
    return Finding(
        cause=CAUSE,
        resource="cpu",
        root=f"{worst.pid} on {mask}",
        summary=f"{case.who} lost {case.amount(lost)} waiting for a CPU: {name} may run on CPU {mask} "
        f"only{mask_before}, while "
        f"CPU {others} were idle {format_percent(facts.idle_cpus(outside) / len(outside))} of the time{instead}",
        claims=claims,
        min_wall_ratio=0.0 if worst.mask_before else NORMAL_VARIATION_RATIO,  # a mask that never changed is no change
        culprits=tuple(user for user in cpu_users if user.pid not in case.job),
        chain=(
            Link(
                text=f"a critical-path thread waited for CPU {mask}",
                seen_ns=lost,
                structure="its mask, its run-queue time, and the idle time of the CPUs outside the mask",
                order="the mask was in force while it waited",
            ),
        ),
        fixes=tuple(_widen_mask(case, facts, thread) for thread in confined[:4]),
        evidence={
            "cpus allowed": mask,
            "cpus allowed before": worst.mask_before or None,
            "idle outside (CPUs)": round(facts.idle_cpus(outside), 2),
            "waiting with room outside (ratio)": round(worst.share, 3),
        },
    )


def _widen_mask(case: Case, facts: SchedulerFacts, thread: _ConfinedThread) -> Fix:
    """More CPUs for a thread: those near its GPU first, if its mask lacks any of them."""
    near = near_cpus(case, facts.all_cpus)
    cpus, text = facts.all_cpus, f"allow {thread.pid} on every CPU"
    if near.where and near.cpus - thread.mask:
        cpus, text = near.cpus, f"allow {thread.pid} on every CPU of {near.where}"
    elif near.where:
        text += f": it has all of {near.where} already, and others are farther from its memory and GPU"
    return Fix(text=text, command=f"sudo taskset -acp {format_cpu_list(cpus)} {thread.pid}")


RULE = Rule(
    cause=CAUSE,
    title="confined to busy CPUs while others were idle",
    order=25,
    needs=("sync_intervals", "offcpu", "scheduling", "cpu_seconds"),
    shows="the mask of the critical-path thread, or of the worker it waited for, its run-queue time, and how much the "
    "CPUs outside the mask were idle in those seconds",
    limits="masks are read once per second; in a container a mask that never changed is taken for its allotment, of "
    "which the CPUs outside may belong to others: then the time is contention",
    explain=explain,
)
