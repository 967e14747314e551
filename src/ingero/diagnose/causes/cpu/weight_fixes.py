"""Fixes that give an affected process a larger share of a CPU: nice values within one cgroup, CPU weights across
cgroups.

The scheduler weighs a thread against its siblings in the same cgroup: other threads, and each child cgroup as one. Nice
values therefore mean nothing across sibling cgroups; there the CPU weights decide, where the two paths diverge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import culprit_names, renice_command
from ingero.diagnose.findings import Culprit, Fix
from ingero.diagnose.limit_commands import (
    Weight,
    cgroup_by_id,
    cgroup_of_pid,
    fix_for_managed_cgroup,
    is_weighed_directly,
    set_cpus,
    set_weight,
)
from ingero.store.records import Container

LOWEST_NICE = 19  # the lowest priority of the normal policy, sched(7)
_MAX_CGROUPS = 3  # cgroups with a fix of their own
_MAX_IDLE_POLICY_PIDS = 6  # processes in a command


def lower_culprits(case: Case, cpu_users: Sequence[Culprit]) -> Iterator[Fix]:
    """Lower priority for the culprits: by nice values where these count, otherwise through their cgroups.

    Where an ancestor of their cgroup, which holds others too, competes with the affected process: a CPU limit instead.
    """
    own = cgroup_by_id(case.evidence, case.process.cgroup_id)
    groups = {user.pid: cgroup_of_pid(case.evidence, user.pid) for user in cpu_users}
    by_nice = [user.pid for user in cpu_users if _is_nice_weighed(groups[user.pid], own)]
    lowest = [pid for pid in by_nice if _nice_of(case, pid) >= LOWEST_NICE]
    if higher := [pid for pid in by_nice if pid not in lowest]:
        yield Fix(text="lower the culprits' CPU priority", command=renice_command(LOWEST_NICE, higher))
    if lowest:
        commands = "; ".join(f"sudo chrt --idle -a -p 0 {pid}" for pid in lowest[:_MAX_IDLE_POLICY_PIDS])
        yield Fix(text=f"run processes with nice {LOWEST_NICE} only on otherwise idle CPUs", command=commands)
    by_group: dict[str, list[Culprit]] = {}
    asked: dict[str, Fix] = {}
    for user in cpu_users:
        group = groups[user.pid]
        if (
            user.pid not in by_nice
            and group
            and (instead := fix_for_managed_cgroup(group, f"{user.name} [{user.pid}]"))
        ):
            asked.setdefault(group.job or group.cgroup_path, instead)
        elif user.pid not in by_nice:
            has_weight = is_weighed_directly(group, own) and not (group and group.pod)
            by_group.setdefault(
                set_weight(group, Weight.LEAST, beside=own) if has_weight else set_cpus(group), []
            ).append(user)
    for command, culprits in list(by_group.items())[:_MAX_CGROUPS]:
        names = culprit_names(culprits)
        text = f"or lower the CPU weight of the cgroup of {names}: nice values do not count across cgroups"
        yield Fix(text=text, command=command)
    yield from list(asked.values())[:_MAX_CGROUPS]


def raise_own_weight(case: Case, cpu_users: Iterable[Culprit]) -> Fix:
    """A higher CPU weight for the affected process's cgroup relative to the first culprit's."""
    own = cgroup_by_id(case.evidence, case.process.cgroup_id)
    culprit_cgroup = next((cgroup_of_pid(case.evidence, user.pid) for user in cpu_users), None)
    return Fix(
        text="raise the CPU weight of the affected process's cgroup",
        command=set_weight(own, Weight.MORE, beside=culprit_cgroup),
    )


def _nice_of(case: Case, pid: int) -> int:
    """A process's last recorded nice value; 0 if it was not read."""
    rows = case.evidence.scheduling.get((pid, pid))
    return rows[-1].nice if rows else 0


def _is_nice_weighed(group: Container | None, own: Container | None) -> bool:
    """Whether nice values of threads in `group` count against the affected process: in its own cgroup or an ancestor.

    True where a cgroup is unknown.
    """
    if group is None or own is None or group.cgroup_id == own.cgroup_id:
        return True
    return bool(group.cgroup_path and own.cgroup_path) and _is_within(own.cgroup_path, group.cgroup_path)


def _is_within(path: str, around: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{around.rstrip('/')}/")
