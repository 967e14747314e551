"""What gives an affected process more of a CPU against whoever had it: a nice value within one control group, else
weights.

The scheduler weighs a thread against what lies in the same group: other threads, and groups below it as one each. So a
nice value says nothing to a thread of a group beside; there the two groups' own weights decide, on the level where
their paths part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cgroup_commands import (
    Weight,
    ask_instead,
    group_of,
    group_of_pid,
    has_own_branch,
    set_cpus,
    set_weight,
)
from ingero.diagnose.causes.cpu.cpu_takers import named, renice
from ingero.diagnose.findings import Culprit, Fix
from ingero.store.records import Container

LOWEST_NICE = 19
_MOST_GROUPS = 3
_MOST_LOWEST = 6  # processes in a command


def lower(case: Case, cpu_users: Sequence[Culprit]) -> Iterator[Fix]:
    """Less of the CPU for those that took it: by nice values where these count, else through their control groups.

    Where it is a group around theirs that is weighed against the affected process's, it holds others, too: then a
    limit.
    """
    own = group_of(case.evidence, case.process.cgroup_id)
    groups = {one.pid: group_of_pid(case.evidence, one.pid) for one in cpu_users}
    by_nice = [one.pid for one in cpu_users if _counts_nice(groups[one.pid], own)]
    lowest = [pid for pid in by_nice if _nice_of(case, pid) >= LOWEST_NICE]
    if higher := [pid for pid in by_nice if pid not in lowest]:
        yield Fix(text="lower the culprits' CPU priority", command=renice(LOWEST_NICE, higher))
    if lowest:
        commands = "; ".join(f"sudo chrt --idle -a -p 0 {pid}" for pid in lowest[:_MOST_LOWEST])
        yield Fix(text=f"run processes with nice {LOWEST_NICE} only on otherwise idle CPUs", command=commands)
    by_group: dict[str, list[Culprit]] = {}
    asked: dict[str, Fix] = {}
    for one in cpu_users:
        group = groups[one.pid]
        if one.pid not in by_nice and group and (instead := ask_instead(group, f"{one.name} [{one.pid}]")):
            asked.setdefault(group.job or group.cgroup_path, instead)
        elif one.pid not in by_nice:
            has_weight = has_own_branch(group, own) and not (group and group.pod)
            by_group.setdefault(
                set_weight(group, Weight.LEAST, beside=own) if has_weight else set_cpus(group), []
            ).append(one)
    for command, those in list(by_group.items())[:_MOST_GROUPS]:
        text = f"or lower the CPU weight of the cgroup of {named(those)}: nice values do not count across cgroups"
        yield Fix(text=text, command=command)
    yield from list(asked.values())[:_MOST_GROUPS]


def raise_own(case: Case, cpu_users: Iterable[Culprit]) -> Fix:
    """More weight for the affected process's control group against that of the first culprit."""
    own = group_of(case.evidence, case.process.cgroup_id)
    theirs = next((group_of_pid(case.evidence, one.pid) for one in cpu_users), None)
    return Fix(
        text="raise the CPU weight of the affected process's cgroup",
        command=set_weight(own, Weight.MORE, beside=theirs),
    )


def _nice_of(case: Case, pid: int) -> int:
    """As last seen; 0 where nobody looked."""
    rows = case.evidence.scheduling.get((pid, pid))
    return rows[-1].nice if rows else 0


def _counts_nice(group: Container | None, own: Container | None) -> bool:
    """Whether a nice value of this group's threads is weighed against the affected process: in its group, or in one
    around it.

    Where a group is not known, there are none.
    """
    if group is None or own is None or group.cgroup_id == own.cgroup_id:
        return True
    return bool(group.cgroup_path and own.cgroup_path) and _is_within(own.cgroup_path, group.cgroup_path)


def _is_within(path: str, around: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{around.rstrip('/')}/")
