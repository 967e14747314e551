"""A critical-path thread could have run, and other processes had the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cgroup_commands import cap
from ingero.diagnose.causes.cpu.cpu_takers import CpuUser, apart, contention, filled_ratio, of_kind, weighty
from ingero.diagnose.causes.cpu.weight_fixes import lower
from ingero.diagnose.causes.cuda_calls.graph_captures import delayed_graphs
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, Fix
from ingero.diagnose.lost_time.agent_start import settled_at_ns
from ingero.diagnose.lost_time.time_ranges import NEVER_RATIO, UNOWNED_RATIO
from ingero.program import command
from ingero.store.records import Window

CAUSE = "cpu-contention"
_MOST = 0.5  # of what was taken


def find(case: Case) -> Iterator[Finding]:
    """Runnable time that named processes of the same container, of the host, or the recorder itself took.

    Who only fills idle CPUs is let run for the little that it costs: the thread that wants its CPU waits for a timer
    tick where the kernel does not preempt. That is told from the share on that two healthy minutes differ by.
    """
    others = weighty(of_kind(case, CpuUser.OTHER))
    finding = contention(
        case,
        CAUSE,
        CpuUser.OTHER,
        text="{who} lost {lost} waiting for a CPU while {cpu_users} ran",
        fixes=lower(case, others),  # asks for their control groups only where there is something to repair
        least_ratio=UNOWNED_RATIO if filled_ratio(case, others) > _MOST else 0.0,
    )
    if finding:
        graphs, move = delayed_graphs(case, finding.claims), apart(case, others)
        chain = (*finding.chain, graphs) if graphs else finding.chain
        home = case.evidence.container_of(case.process.cgroup_id)
        caps = (cap(case.evidence, one.pid, one.name) for one in others if one.container not in ("", home))
        said = {one.command for one in finding.fixes}
        more = [one for one in (*caps, move) if one and one.command not in said]
        yield replace(finding, chain=chain, fixes=(*finding.fixes, *more))
    if own := _of_the_recorder(case):
        yield own


def _of_the_recorder(case: Case) -> Finding | None:
    """What ingero took itself, told where that is more than two healthy minutes differ by, without its start."""
    later = _share_since_start(case)
    return contention(
        case,
        CAUSE,
        CpuUser.AGENT,
        text="{who} lost {lost} waiting for a CPU while ingero itself ran: {cpu_users}",
        fixes=(Fix(text="record less", command=command("trace", "--stack=false", as_root=True)),),
        least_ratio=UNOWNED_RATIO / later if later else NEVER_RATIO,
    )


def _share_since_start(case: Case) -> float:
    """Of what the recorder took from the job, the share that it took after it had started."""
    settled_ns, window = settled_at_ns(case.evidence, case.process.session), case.window
    if window.begin_ns >= settled_ns:
        return 1.0
    if window.end_ns <= settled_ns:
        return 0.0
    later = Window(begin_ns=settled_ns, end_ns=window.end_ns)
    return _taken_ns(case, later) / max(_taken_ns(case, window), 1)


def _taken_ns(case: Case, window: Window) -> int:
    charges = (one for number in case.members for one in case.evidence.culprits((window,), number))
    return sum(one.ns for one in charges if one.culprit_pid in case.evidence.agent_pids)


RULE = Rule(
    cause=CAUSE,
    title="other processes were using the CPU",
    order=30,
    needs=("sync_intervals", "culprits"),
    shows="run-queue time of the critical-path threads, and which process ran on their CPU meanwhile, in nanoseconds",
    limits="CPU time taken by the hypervisor or by interrupts inside a slice counts as the affected process's own",
    find=find,
)
