"""The hypervisor ran other guests on the host's CPUs, or paused the whole host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.machine_pauses import MachinePauses, find_machine_pauses
from ingero.diagnose.causes.cpu.steal_time import StealTime, measure_steal_time
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Fact, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION, UNKNOWN
from ingero.program import command
from ingero.units import format_count, format_ns, format_percent

CAUSE = "cpu-steal"
_MIN_SHARE_OF_LOST_TIME = 0.5  # below it something else is slower, too
_GPU_BUCKET = Bucket(Part.GPU, GPU_EXECUTION)
_PROLONGED_STATES = (
    "run",
    "sleep",
    UNKNOWN,
    GPU_EXECUTION,
)  # what a guest sees: time slices, timers and interrupts take longer


def explain(case: Case) -> Iterator[Finding]:
    """Time lost in seconds with more steal time than in the baseline, at most that much; or in pauses of the host."""
    if case.kind is not FindingKind.INCIDENT:
        return
    steal, pauses = measure_steal_time(case), find_machine_pauses(case)
    steal_share = steal.share if steal and steal.baseline_ratio is not None else 0.0
    pause_share = pauses.share if pauses else 0.0
    if max(steal_share, pause_share) < _MIN_SHARE_OF_LOST_TIME:
        return
    claims = case.claimable(Part, _PROLONGED_STATES, max(steal_share, pause_share) * case.lost_ns)
    if steal and claims.get(_GPU_BUCKET, 0) > (
        left_ns := max(case.unclaimed.get(_GPU_BUCKET, 0) - steal.uniform_gpu_excess_ns, 0)
    ):
        claims[_GPU_BUCKET] = left_ns
    if claims and steal and steal_share >= pause_share:
        yield _steal_finding(case, claims, steal)
    elif claims and pauses:
        yield _pause_finding(case, claims, pauses)


def _steal_finding(case: Case, claims: dict[Bucket, int], steal: StealTime) -> Finding:
    baseline_ratio = steal.baseline_ratio or 0.0
    return _finding(
        claims,
        summary=f"{case.who} lost {case.amount(sum(claims.values()))} to the hypervisor: "
        f"{format_percent(steal.ratio)} of a CPU was stolen (baseline {format_percent(baseline_ratio)})",
        link=Link(
            text="the hypervisor ran other guests on these CPUs",
            seen_ns=int(steal.ratio * case.wall_ns),
            expected_ns=int(baseline_ratio * case.wall_ns),
            structure="steal time of each CPU; at most what was stolen in the same second is attributed",
            order="in the seconds in which the time was lost",
        ),
        fix=Fix(text="use dedicated CPUs, or move to another host", command="vmstat 1  # column st"),
        evidence={"stolen (ratio)": round(steal.ratio, 3), "baseline stolen (ratio)": round(baseline_ratio, 3)},
    )


def _pause_finding(case: Case, claims: dict[Bucket, int], pauses: MachinePauses) -> Finding:
    return _finding(
        claims,
        summary=f"{case.who} lost {case.amount(sum(claims.values()))} because the whole host was paused from outside, "
        f"{format_count(pauses.count)} times: timers of its kernel came up to {format_ns(pauses.longest_ns)} late",
        link=Link(
            text="the hypervisor, or the firmware, paused the whole host",
            seen_ns=sum(claims.values()),
            structure="timers of the kernel that were due in the pauses and came as they ended; steal time does not "
            "show such a pause where a hypervisor limits a VM as a whole",
            order="the waits for the GPU ended with the pauses, or the work was longer by them",
        ),
        fix=Fix(
            text="find what limits this virtual machine: a CPU quota or an overcommitted host; on bare metal, "
            "firmware (SMIs)",
            command=f"{command('query')} \"SELECT timestamp, duration_ns FROM events WHERE op_name = 'late_timer'\"",
        ),
        evidence={"pauses": pauses.count, "longest pause (ns)": pauses.longest_ns},
    )


def _finding(claims: dict[Bucket, int], *, summary: str, link: Link, fix: Fix, evidence: Mapping[str, Fact]) -> Finding:
    return Finding(
        cause=CAUSE,
        resource="cpu",
        root="hypervisor",
        summary=summary,
        claims=claims,
        chain=(link,),
        fixes=(fix,),
        evidence=evidence,
    )


RULE = Rule(
    cause=CAUSE,
    title="the hypervisor ran other guests (steal time)",
    order=15,
    needs=("sync_intervals", "cpu_seconds"),
    improves_with=("HOST",),
    shows="the steal time of the worst CPU, second by second, against the baseline, and that the time was lost in "
    "those seconds; or how often the whole host was paused, by timers of its kernel that came late, and that waits "
    "ended with the pauses",
    limits="a guest cannot see which thread was hit: at most the steal time of the CPU is attributed; where that is "
    "less than half of the lost time, or the baseline is shorter than a second, nothing is claimed; a "
    "pause is seen as far as a timer was due in it, on a CPU that runs within 10 ms, on one that idles within 20 ms",
    explain=explain,
)
