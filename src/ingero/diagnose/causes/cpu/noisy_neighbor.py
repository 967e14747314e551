"""A critical-path thread could have run, and another container had the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cgroup_commands import cap, exclusive_cores, group_of, group_of_pid
from ingero.diagnose.causes.cpu.cpu_takers import CpuUser, contention, of_kind, weighty
from ingero.diagnose.causes.cpu.weight_fixes import lower
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Culprit, Finding, Fix

CAUSE = "noisy-neighbor"
_MOST_FIXES = 3


def find(case: Case) -> Iterator[Finding]:
    """Runnable time that processes of other containers took from an affected process in a container."""
    finding = contention(
        case,
        CAUSE,
        CpuUser.NEIGHBOR,
        text="{who} lost {lost} waiting for a CPU while {cpu_users} ran",
        fixes=(),
    )
    if finding:
        yield replace(finding, fixes=tuple(_fixes(case, weighty(of_kind(case, CpuUser.NEIGHBOR)))))


def _fixes(case: Case, cpu_users: list[Culprit]) -> Iterator[Fix]:
    """Cores of its own for the affected process, or a limit for each neighbor, by who runs it."""
    if exclusive := exclusive_cores(group_of(case.evidence, case.process.cgroup_id)):
        yield exclusive
    capped_groups = set[str]()
    for one in cpu_users[:_MOST_FIXES]:
        group = group_of_pid(case.evidence, one.pid)
        if group and group.cgroup_path in capped_groups:
            continue
        if capped := cap(case.evidence, one.pid, one.name):
            capped_groups.add(group.cgroup_path if group else "")
        yield from [capped] if capped else _of_the_host(case, one)


def _of_the_host(case: Case, cpu_user: Culprit) -> Iterator[Fix]:
    for fix in lower(case, [cpu_user]):
        yield replace(fix, text=f"or lower the CPU priority of {cpu_user.name} [{cpu_user.pid}], a process of the host")


RULE = Rule(
    cause=CAUSE,
    title="another container was using the CPU",
    order=29,
    needs=("sync_intervals", "culprits", "raw_cgroups"),
    shows="as cpu-contention, with the container of each process that ran instead",
    limits="processes on the host itself count as cpu-contention unless the affected process is in a container",
    find=find,
)
