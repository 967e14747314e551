"""Which processes ran while the critical path waited for a CPU, and how they relate to the job: own, neighbor, other,
ingero.

The critical path consists of the process's own thread and, while that sleeps, the thread it waits for: a worker, or the
holder of a lock. Who ran during the own thread's waits is known from exact sums; for other waits, from each interval.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_usage import cpu_use_growth, would_fit_without_others
from ingero.diagnose.causes.cpu.longest_wait import longest_wait, worst_part
from ingero.diagnose.causes.cpu.numa import near_cpus
from ingero.diagnose.causes.cpu.scheduling import IDLE_POLICY, SchedulerFacts
from ingero.diagnose.findings import Bucket, Culprit, Finding, Fix, Link, Part
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.store.records import CulpritTotals
from ingero.store.vocabulary import IDLE_PID
from ingero.units import format_cpu_list

HOST_PARTS = (Part.IDLE, Part.LAUNCH, Part.RETURN_DELAY)
RUNNABLE = ("runq", "yielded")
KEPT_FROM_RUNNING = frozenset((*RUNNABLE, "throttled"))  # states attributed to the process that had the CPU
MIN_SHARE = 0.05  # of the CPU time taken; smaller culprits are noise beside the main one
PRIORITY = "priority"
AGENT_ROOT = "ingero"
_MAX_NAMES = 4  # names, and pids per name, in a sentence
_MIN_OWN_SHARE = 0.5  # of what job and others took, before the job itself may be blamed
_MAX_OTHERS_SHARE = 0.25  # above it the others answer for their own part
_MIN_NAMED_SHARE = 0.5  # of the waits, before those without a name are taken for waits for the same ones
_MIN_OWN_GROWTH = 0.5  # CPUs by which the job's use grew, per thread of it that waited for one
# CPUs by which the others' use grew, per waiting thread: only then do they keep the other CPUs busy
_MIN_OTHERS_GROWTH = 2.0
_MIN_TIMES_OWN_GROWTH = 2.0  # times the job's own growth; below it the job's work grew as theirs did


class CpuUser(enum.Enum):
    """How a process that had the CPU relates to the affected job."""

    OWN = "its own job: threads, workers, and the other ranks with theirs"
    NEIGHBOR = "another container"
    OTHER = "other processes"
    AGENT = "the recorder itself"


@dataclass(frozen=True, slots=True)
class RunnableBlame:
    """Which share of the runnable time (0-1) is attributed to each kind of CPU user; unattributed time is missing.

    shares: of the process's own runnable time. on_path: of the runnable time of threads it waited for.
    is_own_proven: whether the job's own threads increased their CPU use; otherwise they are known to have run, but not
    why.
    """

    shares: Mapping[CpuUser, float]
    on_path: Mapping[CpuUser, float]
    is_own_proven: bool = False


def contention_finding(
    case: Case, cause: str, cpu_user: CpuUser, *, text: str, fixes: Iterable[Fix], min_wall_ratio: float = 0.0
) -> Finding | None:
    """A finding about run-queue time while CPU users of this kind ran; None where they had none.

    text: a template with {who}, {lost} and {cpu_users}. min_wall_ratio: as in Finding.
    """
    blame, cpu_users = blame_runnable_time(case), culprits_of_kind(case, cpu_user)
    culprits_left = _not_yet_blamed(case, cpu_users)
    left_share = sum(user.lost_ns for user in culprits_left) / max(sum(user.lost_ns for user in cpu_users), 1)
    stands_alone = cpu_user is not CpuUser.OWN or blame.is_own_proven
    # otherwise a lock holder that waits for a CPU of its own job still holds the lock: see thread_waits
    is_counted = is_runnable if stands_alone else lambda user: is_runnable(user) and user.pid != case.process.pid
    claims = claim_runnable(case, blame.shares[cpu_user] * left_share, blame.on_path[cpu_user] * left_share, is_counted)
    if not claims:
        return None
    culprits = main_culprits(culprits_left)
    if cpu_user is CpuUser.OWN:
        culprits = _named_by_thread(case, culprits)
    lost = sum(claims.values())
    waiting = any(bucket.state == "sleep" for bucket in claims)
    longest = longest_wait(case, culprits)
    path = "the critical-path thread was runnable but not running"
    return Finding(
        cause=cause,
        resource="cpu",
        root=AGENT_ROOT if cpu_user is CpuUser.AGENT else "host",
        stands_alone=stands_alone,
        min_wall_ratio=min_wall_ratio,
        summary=text.format(who=case.who, lost=case.amount(lost), cpu_users=culprit_names(culprits)),
        claims=claims,
        culprits=tuple(culprits),
        chain=(
            Link(
                text=path + (", and so was the worker it waited for" if waiting else ""),
                seen_ns=lost,
                structure="exact run-queue time inside each sync interval"
                + (" and of the worker it waited for" if waiting else ""),
                order="each wait is attributed to the process that ran on that CPU meanwhile",
            ),
            *((longest,) if longest else ()),
        ),
        fixes=tuple(fixes),
        evidence={
            "context switches": sum(user.switches or 0 for user in culprits_left),
            "culprits": len(culprits_left),
        },
    )


def blame_runnable_time(case: Case) -> RunnableBlame:
    """Attributes the runnable time of a case to the kinds of CPU users.

    Threads of one job always delay each other, so the job is blamed only where its own threads took most of the time;
    then for all of it, unless others took a large share.
    Where they delay each other because other processes keep the other CPUs busy, or clearly increased their use over
    the baseline, those are blamed for all of it, if enough of them are known by name.
    Where job and others increased equally, each is blamed for what it took.
    Processes with the idle policy use whatever CPU is left, so that their use proves nothing: each is then blamed for
    what it took. Ingero always is: it works more while it diagnoses lost time.
    Where few of the waits have a name, as in a live recording whose newest second is not complete, only these count.
    """
    everyone = sum(user.lost_ns for user in case.cpu_users if user.pid != IDLE_PID)
    taken = {kind: sum(user.lost_ns for user in culprits_of_kind(case, kind)) / max(everyone, 1) for kind in CpuUser}
    waited_ns = case.total(HOST_PARTS, RUNNABLE)
    shares, is_own = _blame_shares(case, taken, waited_ns)
    if everyone < _MIN_NAMED_SHARE * waited_ns:
        shares = {kind: share * everyone / waited_ns for kind, share in shares.items()}
    path = _path_shares(case)
    on_path = shares if path is None else _blame_shares(case, path, _runnable_on_path_ns(case))[0]
    return RunnableBlame(shares, on_path, is_own)


def _blame_shares(case: Case, taken: Mapping[CpuUser, float], waited_ns: float) -> tuple[Mapping[CpuUser, float], bool]:
    """Shares of blame by kind, from the share of the waits that each kind took; whether the job itself is proven."""
    own, agent, external = taken[CpuUser.OWN], taken[CpuUser.AGENT], taken[CpuUser.NEIGHBOR] + taken[CpuUser.OTHER]
    known = own + agent + external
    grown, waiting = cpu_use_growth(case), waited_ns / max(case.window.duration_ns, 1)
    if grown is None:
        is_own = not would_fit_without_others(case)
        is_others = not is_own
    else:
        is_own = grown.own >= max(_MIN_OWN_GROWTH * waiting, grown.others + grown.agent)
        is_others = grown.others > max(_MIN_OTHERS_GROWTH * waiting, _MIN_TIMES_OWN_GROWTH * grown.own)
    is_by_others = is_others and external > MIN_SHARE * known and not _idle_policy_pids(case)
    if is_by_others or own < _MIN_OWN_SHARE * (own + external):
        more = (own + external) / external
        others = {kind: taken[kind] * more for kind in (CpuUser.NEIGHBOR, CpuUser.OTHER)}
        return {CpuUser.OWN: 0.0, CpuUser.AGENT: agent} | others, False
    if is_own and external < _MAX_OTHERS_SHARE * known:
        taken = dict.fromkeys(CpuUser, 0.0) | {CpuUser.OWN: own + external, CpuUser.AGENT: agent}
    return taken, is_own


def _path_shares(case: Case) -> dict[CpuUser, float] | None:
    """Each kind's share of the waits for a CPU on the critical path, idle CPUs left out; None if there were none."""
    waits = [
        segment for part in (Part.IDLE, Part.LAUNCH) for segment in case.paths(part).segments if is_runnable(segment)
    ]
    total_ns = sum(wait.duration_ns for wait in waits if wait.culprit_pid != IDLE_PID)
    if not total_ns:
        return None
    groups = {
        row.culprit_pid: row.culprit_cgroup_id for number in case.members for row in _culprit_totals(case, number)
    }
    shares = dict.fromkeys(CpuUser, 0.0)
    for wait in waits:
        if wait.culprit_pid > IDLE_PID:
            home = case.evidence.container_of(groups.get(wait.culprit_pid, 0))
            shares[_kind_of(case, wait.culprit_pid, home)] += wait.duration_ns / total_ns
    return shares


def _runnable_on_path_ns(case: Case) -> float:
    """Runnable time of the threads that the process waited for."""
    parts = (Part.IDLE, Part.LAUNCH)
    return sum(case.total((part,), ("sleep",)) * case.path_share(part, is_runnable) for part in parts)


def is_runnable(segment: PathSegment) -> bool:
    """Whether a path segment is a wait for a CPU of the thread that was waited for."""
    return segment.state == "runq" and segment.waker_kind == "none"


def _culprit_totals(case: Case, process: int) -> list[CulpritTotals]:
    return case.evidence.culprits((case.window,), process)


def idle_policy_ratio(case: Case, cpu_users: Iterable[Culprit]) -> float:
    """Which share of these culprits' CPU time went to processes with the idle policy (0-1)."""
    cpu_users, idle_policy_pids = list(cpu_users), _idle_policy_pids(case)
    idle_policy_ns = sum(user.lost_ns for user in cpu_users if user.pid in idle_policy_pids)
    return idle_policy_ns / max(sum(user.lost_ns for user in cpu_users), 1)


def _idle_policy_pids(case: Case) -> set[int]:
    """Processes outside the job that have the idle policy, and so yield a CPU as soon as others want it."""
    facts = SchedulerFacts(case)
    affected = facts.in_force(case.process.pid, facts.path_thread)
    if affected and affected.policy == IDLE_POLICY:
        return set()
    others = {pid for pid, _ in case.evidence.scheduling} - case.job
    return {pid for pid in others if (row := facts.in_force(pid, pid)) is not None and row.policy == IDLE_POLICY}


def culprits_of_kind(case: Case, kind: CpuUser) -> list[Culprit]:
    """The named culprits of one kind, longest CPU time first."""
    named_ones = (user for user in case.cpu_users if user.pid > IDLE_PID and user.name)
    return [user for user in named_ones if _kind_of(case, user.pid, user.container) is kind]


def _named_by_thread(case: Case, cpu_users: list[Culprit]) -> list[Culprit]:
    """Culprits of the job, each renamed after its thread that ran most while the critical path waited.

    Off-CPU intervals name that thread; the exact sums are per process.
    """
    if not case.evidence.has_offcpu:
        return cpu_users
    rows = case.evidence.offcpu_in(worst_part(case))
    path = {
        int(tid)
        for name in ("prev_sync_tid", "first_launch_tid", "sync_tid")
        for tid in np.unique(case.sync_intervals[name])
    }
    rows = rows[(rows["process"] == case.process.process) & np.isin(rows["tid"], list(path))]
    renamed = []
    for user in cpu_users:
        names, places = np.unique(rows["culprit_name"][rows["culprit_pid"] == user.pid], return_inverse=True)
        ran_ns = np.bincount(places, weights=rows["culprit_ns"][rows["culprit_pid"] == user.pid], minlength=len(names))
        busiest = case.evidence.text(int(names[ran_ns.argmax()])) if len(names) else ""
        renamed.append(replace(user, name=busiest or user.name))
    return renamed


def _not_yet_blamed(case: Case, cpu_users: list[Culprit]) -> list[Culprit]:
    """Culprits without those whose time the priority rule has already claimed."""
    blamed = {culprit.pid for finding in case.findings if finding.cause == PRIORITY for culprit in finding.culprits}
    return [user for user in cpu_users if user.pid not in blamed]


def _kind_of(case: Case, pid: int, container: str) -> CpuUser:
    if pid in case.job:
        return CpuUser.OWN
    if pid in case.evidence.agent_pids:
        return CpuUser.AGENT
    home = case.evidence.container_of(case.process.cgroup_id)
    return CpuUser.NEIGHBOR if home and container != home else CpuUser.OTHER


def claim_runnable(
    case: Case, own_share: float, path_share: float, is_counted: Callable[[PathSegment], bool] = is_runnable
) -> dict[Bucket, int]:
    """Claims shares of the runnable time of the process and of the threads it waited for, as far as unclaimed.

    is_counted: which path segments count.
    """
    own = case.claimable(HOST_PARTS, RUNNABLE, case.total(HOST_PARTS, RUNNABLE) * own_share) if own_share > 0 else {}
    return dict(own) | (case.claimable_on_path(is_counted, path_share) if path_share > 0 else {})


def separate_cpus(case: Case, culprits: list[Culprit]) -> Fix | None:
    """Distinct CPUs for the affected process and the culprits; None where it may use only one CPU.

    With several NUMA nodes the affected process stays near its GPU.
    """
    near = near_cpus(case, frozenset(range(max((session.cpu_count for session in case.evidence.sessions), default=0))))
    cores, where = near.cpus, f" of {near.where}" if near.where else ""
    if len(cores) < 2:
        return None
    rows = case.evidence.offcpu_in(worst_part(case))
    culprit_cpus = (
        set(rows["cpu"][np.isin(rows["culprit_pid"], [culprit.pid for culprit in culprits])].tolist()) & cores
    )
    free = cores - culprit_cpus
    if free:
        text = f"or pin the affected process to CPUs{where} where they were not seen"
        return Fix(text=text, command=f"sudo taskset -acp {format_cpu_list(free)} {case.process.pid}")
    own_cpus, last_cpu = format_cpu_list(cores - {max(cores)}), max(cores)
    moves = [f"sudo taskset -acp {last_cpu} {culprit.pid}" for culprit in culprits[:_MAX_NAMES]]
    command = "; ".join([f"sudo taskset -acp {own_cpus} {case.process.pid}", *moves])
    return Fix(text=f"or pin them to different CPUs (they used every CPU{where})", command=command)


def culprit_names(culprits: list[Culprit]) -> str:
    """The culprits as text, processes of the same name grouped."""
    names: dict[str, list[Culprit]] = {}
    for culprit in culprits:
        names.setdefault(culprit.name, []).append(culprit)
    return " and ".join(_group_text(name, group) for name, group in list(names.items())[:_MAX_NAMES])


def main_culprits(culprits: list[Culprit]) -> list[Culprit]:
    """Culprits with a significant share, alone or with others of their name: a hundred small ones are one culprit."""
    total, ns_by_name = 0, dict[str, list[int]]()
    for culprit in culprits:
        total += culprit.lost_ns
        ns_by_name.setdefault(culprit.name, []).append(culprit.lost_ns)
    least = {
        name: MIN_SHARE * (total if sum(each_ns) < MIN_SHARE * total else max(each_ns))
        for name, each_ns in ns_by_name.items()
    }
    return [culprit for culprit in culprits if culprit.lost_ns >= least[culprit.name]]


def pid_list(culprits: Iterable[Culprit]) -> str:
    """Pids for a command line, at most eight."""
    return " ".join(str(culprit.pid) for culprit in list(culprits)[: 2 * _MAX_NAMES])


def renice_command(nice: int, to_pids: Iterable[int]) -> str:
    """A renice command for every thread of these processes: Linux renices a single thread per tid."""
    return f"sudo renice -n {nice} -p " + " ".join(f"$(ls /proc/{pid}/task)" for pid in to_pids)


def _group_text(name: str, group: list[Culprit]) -> str:
    more = f" and {len(group) - _MAX_NAMES} more" if len(group) > _MAX_NAMES else ""
    place = f" in {group[0].container}" if group[0].container else ""
    place += f" of {group[0].job}" if group[0].job else ""
    return f"{name} ({', '.join(str(one.pid) for one in group[:_MAX_NAMES])}{more}){place}"
