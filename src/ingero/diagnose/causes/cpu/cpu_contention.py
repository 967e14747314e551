"""A critical-path thread was runnable while other processes had the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.cpu_takers import (
    CpuUser,
    contention_finding,
    culprits_of_kind,
    idle_policy_ratio,
    main_culprits,
    separate_cpus,
)
from ingero.diagnose.causes.cpu.weight_fixes import lower_culprits
from ingero.diagnose.causes.cuda_calls.graph_captures import delayed_graphs_link
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, Fix
from ingero.diagnose.limit_commands import cap_cpu
from ingero.diagnose.lost_time.agent_start import settled_at_ns
from ingero.diagnose.lost_time.time_ranges import NORMAL_VARIATION_RATIO, REPORT_ONLY_JOINED
from ingero.program import command
from ingero.store.records import Window

CAUSE = "cpu-contention"
_MIN_IDLE_POLICY_RATIO = 0.5  # of the CPU time of the culprits


def explain(case: Case) -> Iterator[Finding]:
    """Run-queue time during which other processes of the host or container, or ingero itself, ran.

    Processes with the idle policy use only idle CPUs and cost little: without kernel preemption a waking thread waits
    for
    the next timer tick. They are reported only above the ratio by which two healthy minutes differ.
    """
    others = main_culprits(culprits_of_kind(case, CpuUser.OTHER))
    finding = contention_finding(
        case,
        CAUSE,
        CpuUser.OTHER,
        text="{who} lost {lost} waiting for a CPU while {cpu_users} ran",
        fixes=lower_culprits(case, others),  # lazy: reads cgroups only if there is a finding
        min_wall_ratio=NORMAL_VARIATION_RATIO if idle_policy_ratio(case, others) > _MIN_IDLE_POLICY_RATIO else 0.0,
    )
    if finding:
        graphs, separate = delayed_graphs_link(case, finding.claims), separate_cpus(case, others)
        chain = (*finding.chain, graphs) if graphs else finding.chain
        home = case.evidence.container_of(case.process.cgroup_id)
        caps = (cap_cpu(case.evidence, user.pid, user.name) for user in others if user.container not in ("", home))
        commands = {fix.command for fix in finding.fixes}
        more = [fix for fix in (*caps, separate) if fix and fix.command not in commands]
        yield replace(finding, chain=chain, fixes=(*finding.fixes, *more))
    if agent_finding := _agent_finding(case):
        yield agent_finding


def _agent_finding(case: Case) -> Finding | None:
    """Run-queue time while ingero ran, without its start; reported above the ratio by which healthy minutes differ."""
    share_after_start = _share_after_start(case)
    return contention_finding(
        case,
        CAUSE,
        CpuUser.AGENT,
        text="{who} lost {lost} waiting for a CPU while ingero itself ran: {cpu_users}",
        fixes=(Fix(text="record less", command=command("trace", "--stack=false", as_root=True)),),
        min_wall_ratio=NORMAL_VARIATION_RATIO / share_after_start if share_after_start else REPORT_ONLY_JOINED,
    )


def _share_after_start(case: Case) -> float:
    """Of the CPU time that ingero took from the job, the share taken after ingero had started (0-1)."""
    settled_ns, window = settled_at_ns(case.evidence, case.process.session), case.window
    if window.begin_ns >= settled_ns:
        return 1.0
    if window.end_ns <= settled_ns:
        return 0.0
    after_start = Window(begin_ns=settled_ns, end_ns=window.end_ns)
    return _agent_ns(case, after_start) / max(_agent_ns(case, window), 1)


def _agent_ns(case: Case, window: Window) -> int:
    charges = (row for number in case.members for row in case.evidence.culprits((window,), number))
    return sum(row.ns for row in charges if row.culprit_pid in case.evidence.agent_pids)


RULE = Rule(
    cause=CAUSE,
    title="other processes were using the CPU",
    order=30,
    needs=("sync_intervals", "culprits"),
    shows="run-queue time of the critical-path threads, and which process ran on their CPU meanwhile, in nanoseconds",
    limits="CPU time taken by the hypervisor or by interrupts inside a slice counts as the affected process's own",
    explain=explain,
)
