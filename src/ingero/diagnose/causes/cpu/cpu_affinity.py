"""A critical-path thread could have run, but not where a CPU stood idle: its mask forbade it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.kernel_waits import PathWaits
from ingero.diagnose.causes.cpu.cpu_takers import HOST_PARTS, RUNNABLE, named, weighty
from ingero.diagnose.causes.cpu.cpu_usage import grown_use
from ingero.diagnose.causes.cpu.numa import near_cpus
from ingero.diagnose.causes.cpu.scheduling import CpuSet, SchedulerFacts
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Finding, Fix, Link
from ingero.diagnose.lost_time.time_ranges import UNOWNED_RATIO
from ingero.store.vocabulary import IDLE_PID
from ingero.units import format_cpu_list, format_percent, parse_cpu_list

CAUSE = "cpu-affinity"
MIN_IDLE = 0.2  # of the time; a CPU that was idle less would hardly have helped


@dataclass(frozen=True, slots=True)
class _Confined:
    """A thread that may not run everywhere. share: of its waiting, that CPUs outside its mask had room for."""

    pid: int
    tid: int
    mask: CpuSet
    was: str  # the wider mask that it had before; "" where none was seen
    share: float


def find(case: Case) -> Iterator[Finding]:
    """Runnable time of confined threads, as far as CPUs outside their masks had room for them."""
    facts = SchedulerFacts(case)
    own = _confined(facts, case.process.pid, facts.path_thread)
    workers = _confined_workers(case, facts)
    mine, theirs = dict[Bucket, int](), dict[Bucket, int]()
    if own:
        mine = case.take(HOST_PARTS, RUNNABLE, case.total(HOST_PARTS, RUNNABLE) * own.share)
    if workers:
        theirs = PathWaits(case).claim_parts(
            lambda one: one.duration_ns * workers[one.tid].share if one.state == "runq" and one.tid in workers else 0.0
        )
    confined = list(workers.values())
    if own and sum(mine.values()):
        confined.insert(0 if sum(mine.values()) >= sum(theirs.values()) else len(confined), own)
    claims = {bucket: ns for bucket, ns in (mine | theirs).items() if ns > 0}
    if claims:
        yield _finding(case, facts, claims, confined)


def _confined_workers(case: Case, facts: SchedulerFacts) -> dict[int, _Confined]:
    """By thread, those of its workers that waited for a CPU while it waited for them, longest first."""
    waited: Counter[tuple[int, int]] = Counter()
    for one in case.empty_paths:
        if one.depth > 0 and one.state == "runq" and one.pid in case.family:
            waited[one.pid, one.tid] += one.duration_ns
    found = {tid: _confined(facts, pid, tid) for (pid, tid), _ in waited.most_common()}
    return {tid: one for tid, one in found.items() if one}


def _confined(facts: SchedulerFacts, pid: int, tid: int) -> _Confined | None:
    row = facts.in_force(pid, tid)
    mask = parse_cpu_list(row.cpus_allowed) if row else frozenset()
    outside = facts.all_cpus - mask
    if row is None or not mask or not outside:
        return None
    wider = [one for one in facts.history(pid, tid) if parse_cpu_list(one.cpus_allowed) > mask]
    if not wider and facts.case.evidence.container_of(facts.case.process.cgroup_id):
        return None  # a container's CPUs are its allotment: the idle ones may be others'
    idle = facts.idle_share(outside)
    if idle < MIN_IDLE:
        return None
    if not wider:
        return _Confined(pid, tid, mask, "", idle)
    return _Confined(pid, tid, mask, wider[-1].cpus_allowed, max(idle, _as_free_as_before(facts.case)))


def _as_free_as_before(case: Case) -> float:
    """Which share of a CPU others left as free as they did in the reference, where the wider mask was enough."""
    grown = grown_use(case)
    return 1 - min(max(grown.others + grown.agent, 0.0), 1.0) if grown else 0.0


def _finding(case: Case, facts: SchedulerFacts, claims: dict[Bucket, int], confined: list[_Confined]) -> Finding:
    lost, worst = sum(claims.values()), confined[0]
    outside = facts.all_cpus - worst.mask
    mask, others = format_cpu_list(worst.mask), format_cpu_list(outside)
    is_own = worst.pid == case.process.pid
    name = "it" if is_own else f"its worker {case.evidence.name_of_pid(worst.pid)} [{worst.pid}]"
    was = f", before {worst.was}" if worst.was else ""
    cpu_users = weighty([one for one in case.cpu_users if one.pid > IDLE_PID and one.name])
    instead = f"; {named(cpu_users)} ran there" if cpu_users else ""
    return Finding(
        cause=CAUSE,
        resource="cpu",
        root=f"{worst.pid} on {mask}",
        summary=f"{case.who} lost {case.amount(lost)} waiting for a CPU: {name} may run on CPU {mask} only{was}, while "
        f"CPU {others} were idle {format_percent(facts.idle_cpus(outside) / len(outside))} of the time{instead}",
        claims=claims,
        least_ratio=0.0 if worst.was else UNOWNED_RATIO,  # an old mask is not what has changed
        culprits=tuple(one for one in cpu_users if one.pid not in case.job),
        chain=(
            Link(
                text=f"a critical-path thread waited for CPU {mask}",
                seen_ns=lost,
                structure="its mask, its run-queue time, and the idle time of the CPUs outside the mask",
                order="the mask was in force while it waited",
            ),
        ),
        fixes=tuple(_wider(case, facts, one) for one in confined[:4]),
        evidence={
            "cpus allowed": mask,
            "cpus allowed before": worst.was or None,
            "idle outside (CPUs)": round(facts.idle_cpus(outside), 2),
            "waiting with room outside (ratio)": round(worst.share, 3),
        },
    )


def _wider(case: Case, facts: SchedulerFacts, one: _Confined) -> Fix:
    """More CPUs, near its GPU as long as there are any that it may not use yet."""
    near = near_cpus(case, facts.all_cpus)
    wide, text = facts.all_cpus, f"allow {one.pid} on every CPU"
    if near.where and near.cpus - one.mask:
        wide, text = near.cpus, f"allow {one.pid} on every CPU of {near.where}"
    elif near.where:
        text += f": it has all of {near.where} already, and others are farther from its memory and GPU"
    return Fix(text=text, command=f"sudo taskset -acp {format_cpu_list(wide)} {one.pid}")


RULE = Rule(
    cause=CAUSE,
    title="confined to busy CPUs while others were idle",
    order=25,
    needs=("sync_intervals", "offcpu", "scheduling", "cpu_seconds"),
    shows="the mask of the critical-path thread, or of the worker it waited for, its run-queue time, and how much the "
    "CPUs outside the mask were idle in those seconds",
    limits="masks are read once per second; in a container a mask that never changed is taken for its allotment, of "
    "which the CPUs outside may belong to others: then the time is contention",
    find=find,
)
