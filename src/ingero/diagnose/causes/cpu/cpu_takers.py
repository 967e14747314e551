"""Lost time in which somebody on the critical path could have run: who ran instead, and what kind of neighbor that was.

On the path are the process's own thread (its clocks) and, while that sleeps, whoever it waits for (its path): a worker,
a thread that holds a lock. Who ran instead is known of the own waits by exact sums, of those on the critical path one
by one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_usage import grown_use, would_fit_alone
from ingero.diagnose.causes.cpu.longest_wait import longest_wait, worst_part
from ingero.diagnose.causes.cpu.numa import near_cpus
from ingero.diagnose.causes.cpu.scheduling import IDLE_POLICY, SchedulerFacts
from ingero.diagnose.findings import Bucket, Culprit, Finding, Fix, Link, Part
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.store.records import CulpritTotals
from ingero.store.vocabulary import IDLE_PID
from ingero.units import format_cpu_list

HOST_PARTS = (Part.IDLE, Part.LAUNCH, Part.RETURN_DELAY)
RUNNABLE = ("runq", "yielded")
KEPT_FROM_RUNNING = frozenset((*RUNNABLE, "throttled"))  # states whose time belongs to whoever had the CPU
MIN_SHARE = 0.05  # of the time taken; smaller culprits are noise around the one that matters
PRIORITY = "priority"
INGERO = "ingero"
_MOST_NAMES = 4
_OWN_ANSWERS = 0.5
_TOO_MANY_OTHERS = 0.25
_WORTH = 0.5  # CPUs that the job came to use, of its threads that waited for one
_OTHERS_WORTH = 2.0  # and that others came to use: they crowd it only where they keep the other CPUs busy
_CLEARLY = 2.0  # as many CPUs as the job itself came to use: else its own work grew as theirs did


class CpuUser(enum.Enum):
    """Who ran while somebody on the critical path was runnable."""

    OWN = "its own job: threads, workers, and the other ranks with theirs"
    NEIGHBOR = "another container"
    OTHER = "other processes"
    AGENT = "the recorder itself"


@dataclass(frozen=True, slots=True)
class Answers:
    """Which share of the runnable time each kind of culprit answers for; what nobody could be named for is missing.

    shares: of the process's own. on_path: of those that it waited for. is_own_proven: whether the job's own threads
    came to use the CPUs more. Else they say who ran, not why.
    """

    shares: Mapping[CpuUser, float]
    on_path: Mapping[CpuUser, float]
    is_own_proven: bool = False


def contention(
    case: Case, cause: str, cpu_user: CpuUser, *, text: str, fixes: Iterable[Fix], least_ratio: float = 0.0
) -> Finding | None:
    """A finding about the runnable time that culprits of this kind had; None where they had none.

    text: with {who}, {lost} and {cpu_users}. least_ratio: as in the finding.
    """
    found, cpu_users = answers(case), of_kind(case, cpu_user)
    chosen = _not_yet_charged(case, cpu_users)
    left = sum(one.lost_ns for one in chosen) / max(sum(one.lost_ns for one in cpu_users), 1)
    is_whole = cpu_user is not CpuUser.OWN or found.is_own_proven
    # else the holder of a lock that waits behind its own job holds it meanwhile: that is the lock's (`threads`)
    of_path = is_runnable if is_whole else lambda one: is_runnable(one) and one.pid != case.process.pid
    claims = claim(case, found.shares[cpu_user] * left, found.on_path[cpu_user] * left, of_path)
    if not claims:
        return None
    culprits = weighty(chosen)
    if cpu_user is CpuUser.OWN:
        culprits = _by_thread(case, culprits)
    lost = sum(claims.values())
    waiting = any(bucket.state == "sleep" for bucket in claims)
    longest = longest_wait(case, culprits)
    path = "the critical-path thread was runnable but not running"
    return Finding(
        cause=cause,
        resource="cpu",
        root=INGERO if cpu_user is CpuUser.AGENT else "host",
        is_whole=is_whole,
        least_ratio=least_ratio,
        summary=text.format(who=case.who, lost=case.amount(lost), cpu_users=named(culprits)),
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
        evidence={"context switches": sum(one.switches or 0 for one in chosen), "culprits": len(chosen)},
    )


def answers(case: Case) -> Answers:
    """Who answers for the runnable time of a case.

    Threads of one job take from each other whatever the cause. So its own answer only where they took most, for
    everything but what a large share of others took. Where they crowd each other because others use the other CPUs, or
    clearly came to if there is a reference, those answer for all of it, if enough of them were seen to be named. Where
    job and others came to use as much, each answers for what it took. Who runs only where nobody else wants to (policy
    "idle") uses whatever is left: where such a one is there, what others use proves nothing, and each answers for what
    it took. The recorder always does: it works more while it looks at a lost time.
    """
    everyone = sum(one.lost_ns for one in case.cpu_users if one.pid != IDLE_PID)
    taken = {kind: sum(one.lost_ns for one in of_kind(case, kind)) / max(everyone, 1) for kind in CpuUser}
    shares, is_own = _answered(case, taken, case.total(HOST_PARTS, RUNNABLE))
    path = _taken_on_path(case)
    on_path = shares if path is None else _answered(case, path, _on_path_ns(case))[0]
    return Answers(shares, on_path, is_own)


def _answered(case: Case, taken: Mapping[CpuUser, float], waited_ns: float) -> tuple[Mapping[CpuUser, float], bool]:
    """Who answers for waits of which each kind took so much, and whether the job's own threads are proven to."""
    own, agent, external = taken[CpuUser.OWN], taken[CpuUser.AGENT], taken[CpuUser.NEIGHBOR] + taken[CpuUser.OTHER]
    known = own + agent + external
    grown, waiting = grown_use(case), waited_ns / max(case.window.duration_ns, 1)
    if grown is None:
        is_own = not would_fit_alone(case)
        is_others = not is_own
    else:
        is_own = grown.own >= max(_WORTH * waiting, grown.others + grown.agent)
        is_others = grown.others > max(_OTHERS_WORTH * waiting, _CLEARLY * grown.own)
    crowded = is_others and external > MIN_SHARE * known and not _fillers(case)
    if crowded or own < _OWN_ANSWERS * (own + external):
        more = (own + external) / external
        others = {kind: taken[kind] * more for kind in (CpuUser.NEIGHBOR, CpuUser.OTHER)}
        return {CpuUser.OWN: 0.0, CpuUser.AGENT: agent} | others, False
    if is_own and external < _TOO_MANY_OTHERS * known:
        taken = dict.fromkeys(CpuUser, 0.0) | {CpuUser.OWN: own + external, CpuUser.AGENT: agent}
    return taken, is_own


def _taken_on_path(case: Case) -> dict[CpuUser, float] | None:
    """Of the waits for a CPU on the critical path, each kind's share of what no idle CPU had; None without any."""
    waits = [one for part in (Part.IDLE, Part.LAUNCH) for one in case.paths(part).segments if is_runnable(one)]
    everyone = sum(one.duration_ns for one in waits if one.culprit_pid != IDLE_PID)
    if not everyone:
        return None
    groups = {one.culprit_pid: one.culprit_cgroup_id for number in case.members for one in _charges(case, number)}
    took = dict.fromkeys(CpuUser, 0.0)
    for one in waits:
        if one.culprit_pid > IDLE_PID:
            home = case.evidence.container_of(groups.get(one.culprit_pid, 0))
            took[_kind(case, one.culprit_pid, home)] += one.duration_ns / everyone
    return took


def _on_path_ns(case: Case) -> float:
    """How long those that it waited for waited for a CPU."""
    parts = (Part.IDLE, Part.LAUNCH)
    return sum(case.total((part,), ("sleep",)) * case.path_share(part, is_runnable) for part in parts)


def is_runnable(piece: Segment) -> bool:
    """Whether it is a wait for a CPU of whoever was waited for."""
    return piece.state == "runq" and piece.waker_kind == "none"


def _charges(case: Case, process: int) -> list[CulpritTotals]:
    return case.evidence.culprits((case.window,), process)


def filled_ratio(case: Case, cpu_users: Iterable[Culprit]) -> float:
    """Which share of what these took went to such as run only where nobody else wants to."""
    cpu_users, fillers = list(cpu_users), _fillers(case)
    filled_ns = sum(one.lost_ns for one in cpu_users if one.pid in fillers)
    return filled_ns / max(sum(one.lost_ns for one in cpu_users), 1)


def _fillers(case: Case) -> set[int]:
    """Who, outside the job, runs wherever a CPU is idle, and is to leave it as soon as its threads want it."""
    facts = SchedulerFacts(case)
    affected = facts.in_force(case.process.pid, facts.path_thread)
    if affected and affected.policy == IDLE_POLICY:
        return set()
    others = {pid for pid, _ in case.evidence.scheduling} - case.job
    return {pid for pid in others if (row := facts.in_force(pid, pid)) is not None and row.policy == IDLE_POLICY}


def of_kind(case: Case, kind: CpuUser) -> list[Culprit]:
    """The named culprits of one kind, most time first."""
    named_ones = (one for one in case.cpu_users if one.pid > IDLE_PID and one.name)
    return [one for one in named_ones if _kind(case, one.pid, one.container) is kind]


def _by_thread(case: Case, cpu_users: list[Culprit]) -> list[Culprit]:
    """Processes of the job by the name of whichever of their threads ran most while its path waited.

    As far as that is recorded: longer intervals off the CPU have it, the exact sums are of processes.
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
    found = []
    for one in cpu_users:
        names, places = np.unique(rows["culprit_name"][rows["culprit_pid"] == one.pid], return_inverse=True)
        took = np.bincount(places, weights=rows["culprit_ns"][rows["culprit_pid"] == one.pid], minlength=len(names))
        most = case.evidence.text(int(names[took.argmax()])) if len(names) else ""
        found.append(replace(one, name=most or one.name))
    return found


def _not_yet_charged(case: Case, cpu_users: list[Culprit]) -> list[Culprit]:
    """Without those whose time a higher priority explains already."""
    charged = {one.pid for finding in case.findings if finding.cause == PRIORITY for one in finding.culprits}
    return [one for one in cpu_users if one.pid not in charged]


def _kind(case: Case, pid: int, container: str) -> CpuUser:
    if pid in case.job:
        return CpuUser.OWN
    if pid in case.evidence.agent_pids:
        return CpuUser.AGENT
    home = case.evidence.container_of(case.process.cgroup_id)
    return CpuUser.NEIGHBOR if home and container != home else CpuUser.OTHER


def claim(
    case: Case, share: float, on_path: float, of_path: Callable[[Segment], bool] = is_runnable
) -> dict[Bucket, int]:
    """These shares of the process's own runnable time, and of that of whoever it waited for, as far as it is left.

    of_path: which pieces of that are meant.
    """
    own = case.take(HOST_PARTS, RUNNABLE, case.total(HOST_PARTS, RUNNABLE) * share) if share > 0 else {}
    return dict(own) | (case.take_path(of_path, on_path) if on_path > 0 else {})


def apart(case: Case, culprits: list[Culprit]) -> Fix | None:
    """Cores of their own for the affected process and for those that took its CPU; None where it has one core to choose
    from.

    On a machine with several NUMA nodes the affected process stays near its GPU.
    """
    near = near_cpus(case, frozenset(range(max((one.cpu_count for one in case.evidence.sessions), default=0))))
    cores, where = near.cpus, f" of {near.where}" if near.where else ""
    if len(cores) < 2:
        return None
    rows = case.evidence.offcpu_in(worst_part(case))
    theirs = set(rows["cpu"][np.isin(rows["culprit_pid"], [one.pid for one in culprits])].tolist()) & cores
    free = cores - theirs
    if free:
        text = f"or pin the affected process to CPUs{where} where they were not seen"
        return Fix(text=text, command=f"sudo taskset -acp {format_cpu_list(free)} {case.process.pid}")
    mine, last = format_cpu_list(cores - {max(cores)}), max(cores)
    moves = [f"sudo taskset -acp {last} {one.pid}" for one in culprits[:_MOST_NAMES]]
    command = "; ".join([f"sudo taskset -acp {mine} {case.process.pid}", *moves])
    return Fix(text=f"or pin them to different CPUs (they used every CPU{where})", command=command)


def named(culprits: list[Culprit]) -> str:
    """The culprits in a sentence, processes of one name together."""
    names: dict[str, list[Culprit]] = {}
    for one in culprits:
        names.setdefault(one.name, []).append(one)
    return " and ".join(_group(name, group) for name, group in list(names.items())[:_MOST_NAMES])


def weighty(culprits: list[Culprit]) -> list[Culprit]:
    """Those with a share worth naming, alone or with others of their name: a hundred small ones are one culprit."""
    total, of_name = 0, dict[str, list[int]]()
    for one in culprits:
        total += one.lost_ns
        of_name.setdefault(one.name, []).append(one.lost_ns)
    least = {
        name: MIN_SHARE * (total if sum(took) < MIN_SHARE * total else max(took)) for name, took in of_name.items()
    }
    return [one for one in culprits if one.lost_ns >= least[one.name]]


def pids(culprits: Iterable[Culprit]) -> str:
    """Their pids for a command line."""
    return " ".join(str(one.pid) for one in list(culprits)[: 2 * _MOST_NAMES])


def renice(nice: int, targets: Iterable[int]) -> str:
    """The command for all threads of these processes: on Linux a pid means the first thread only."""
    return f"sudo renice -n {nice} -p " + " ".join(f"$(ls /proc/{pid}/task)" for pid in targets)


def _group(name: str, group: list[Culprit]) -> str:
    more = f" and {len(group) - _MOST_NAMES} more" if len(group) > _MOST_NAMES else ""
    place = f" in {group[0].container}" if group[0].container else ""
    place += f" of {group[0].job}" if group[0].job else ""
    return f"{name} ({', '.join(str(one.pid) for one in group[:_MOST_NAMES])}{more}){place}"
