"""A critical-path thread was runnable while another container had the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import CpuUser, contention_finding, culprits_of_kind, main_culprits
from ingero.diagnose.causes.cpu.weight_fixes import lower_culprits
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Culprit, Finding, Fix
from ingero.diagnose.limit_commands import cap_cpu, cgroup_by_id, cgroup_of_pid, exclusive_cores

CAUSE = "noisy-neighbor"
_MAX_FIXES = 3  # neighbors with a fix of their own


def explain(case: Case) -> Iterator[Finding]:
    """Run-queue time of a process in a container while processes of other containers ran."""
    finding = contention_finding(
        case,
        CAUSE,
        CpuUser.NEIGHBOR,
        text="{who} lost {lost} waiting for a CPU while {cpu_users} ran",
        fixes=(),
    )
    if finding:
        yield replace(finding, fixes=tuple(_fixes(case, main_culprits(culprits_of_kind(case, CpuUser.NEIGHBOR)))))


def _fixes(case: Case, cpu_users: list[Culprit]) -> Iterator[Fix]:
    """Exclusive cores for the affected process, or a limit for each neighbor through its manager."""
    if exclusive := exclusive_cores(cgroup_by_id(case.evidence, case.process.cgroup_id)):
        yield exclusive
    capped_groups = set[str]()
    for user in cpu_users[:_MAX_FIXES]:
        group = cgroup_of_pid(case.evidence, user.pid)
        if group and group.cgroup_path in capped_groups:
            continue
        if capped := cap_cpu(case.evidence, user.pid, user.name):
            capped_groups.add(group.cgroup_path if group else "")
        yield from [capped] if capped else _fixes_for_host_process(case, user)


def _fixes_for_host_process(case: Case, cpu_user: Culprit) -> Iterator[Fix]:
    for fix in lower_culprits(case, [cpu_user]):
        yield replace(fix, text=f"or lower the CPU priority of {cpu_user.name} [{cpu_user.pid}], a process of the host")


RULE = Rule(
    cause=CAUSE,
    title="another container was using the CPU",
    order=29,
    needs=("sync_intervals", "culprits", "raw_cgroups"),
    shows="as cpu-contention, with the container of each process that ran instead",
    limits="processes on the host itself count as cpu-contention unless the affected process is in a container",
    explain=explain,
)
