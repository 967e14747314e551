"""The hypervisor ran others on the machine's CPUs, or let the whole machine wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.cpu.machine_pauses import Paused, paused
from ingero.diagnose.causes.cpu.steal_time import Stolen, stolen
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Bucket, Fact, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import DEVICE, UNKNOWN
from ingero.program import command
from ingero.units import format_count, format_ns, format_percent

CAUSE = "cpu-steal"
_MOSTLY = 0.5  # of the lost time: with less of it something else is slower, too
_DEVICE = Bucket(Part.GPU, DEVICE)
_LONGER = ("run", "sleep", UNKNOWN, DEVICE)  # what a guest sees of it: slices, timers and interrupts that take longer


def find(case: Case) -> Iterator[Finding]:
    """Time lost in the seconds, and at most by the amounts, that were stolen beyond the reference; or in pauses."""
    if case.kind is not FindingKind.INCIDENT:
        return
    clock, late = stolen(case), paused(case)
    by_clock = clock.share if clock and clock.usual_ratio is not None else 0.0
    by_timers = late.share if late else 0.0
    if max(by_clock, by_timers) < _MOSTLY:
        return
    claims = case.take(Part, _LONGER, max(by_clock, by_timers) * case.lost_ns)
    if clock and claims.get(_DEVICE, 0) > (rest := max(case.left.get(_DEVICE, 0) - clock.alike_ns, 0)):
        claims[_DEVICE] = rest
    if claims and clock and by_clock >= by_timers:
        yield _by_clock(case, claims, clock)
    elif claims and late:
        yield _by_timers(case, claims, late)


def _by_clock(case: Case, claims: dict[Bucket, int], found: Stolen) -> Finding:
    usual_ratio = found.usual_ratio or 0.0
    return _finding(
        claims,
        summary=f"{case.who} lost {case.amount(sum(claims.values()))} to the hypervisor: "
        f"{format_percent(found.ratio)} of a CPU was stolen (baseline {format_percent(usual_ratio)})",
        link=Link(
            text="the hypervisor ran other guests on these CPUs",
            seen_ns=int(found.ratio * case.wall_ns),
            expected_ns=int(usual_ratio * case.wall_ns),
            structure="steal time of each CPU; at most what was stolen in the same second is attributed",
            order="in the seconds in which the time was lost",
        ),
        fix=Fix(text="use dedicated CPUs, or move to another host", command="vmstat 1  # column st"),
        evidence={"stolen (ratio)": round(found.ratio, 3), "baseline stolen (ratio)": round(usual_ratio, 3)},
    )


def _by_timers(case: Case, claims: dict[Bucket, int], found: Paused) -> Finding:
    return _finding(
        claims,
        summary=f"{case.who} lost {case.amount(sum(claims.values()))} because the whole host was paused from outside, "
        f"{format_count(found.count)} times: timers of its kernel came up to {format_ns(found.longest_ns)} late",
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
        evidence={"pauses": found.count, "longest pause (ns)": found.longest_ns},
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
    wants=("HOST",),
    shows="the steal time of the worst CPU, second by second, against the baseline, and that the time was lost in "
    "those seconds; or how often the whole host was paused, by timers of its kernel that came late, and that waits "
    "ended with the pauses",
    limits="a guest cannot see which thread was hit: at most the steal time of the CPU is attributed; where that is "
    "less than half of the lost time, or the baseline is shorter than a second, nothing is claimed; a "
    "pause is seen as far as a timer was due in it, on a CPU that runs within 10 ms, on one that idles within 20 ms",
    find=find,
)
