"""What findings about a profiled process have in common: when they are worth telling, and whose lost time it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingero.diagnose.findings import Affected, Bucket, CodeLine, Fact, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_NS
from ingero.diagnose.profile.pacing import Pacing
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.steps import MIN_STEPS
from ingero.store.records import Process, Window

_HELD_UP_BY_HOST = (Pacing.HOST, Pacing.MIXED)


def is_hosts_doing(report: ProfileReport, lost_ns: int, least_ratio: float) -> bool:
    """Whether it is worth telling and the host holds the GPU up: of a GPU-bound program its host is not the trouble."""
    return report.paced_by in _HELD_UP_BY_HOST and is_worth_telling(report, lost_ns, least_ratio)


def is_worth_telling(report: ProfileReport, lost_ns: int, least_ratio: float) -> bool:
    """Whether that much of typical steps was lost; without enough steps, as much as wakes anybody."""
    typical = sum(step.is_typical for step in report.steps)
    is_sure = typical >= MIN_STEPS or lost_ns >= MIN_LOST_NS
    return is_sure and lost_ns >= least_ratio * report.judged_ns


def bottleneck(
    report: ProfileReport,
    *,
    cause: str,
    resource: str,
    summary: str,
    lost_ns: int,
    links: Sequence[Link],
    fixes: Sequence[Fix],
    evidence: Mapping[str, Fact],
    line: CodeLine | None = None,
    part: Part = Part.IDLE,
) -> Finding:
    """A steady-state bottleneck of one process: a share of the time of its typical steps."""
    process = report.process
    return Finding(
        cause=cause,
        resource=resource,
        root=str(process.pid),
        kind=FindingKind.BOTTLENECK,
        summary=summary,
        claims={Bucket(part, part.value): lost_ns},  # in which state the thread was is not in a profile
        window=Window(begin_ns=report.begin_ns, end_ns=report.end_ns),
        line=line,
        chain=tuple(links),
        fixes=tuple(fixes),
        evidence={"GPU busy (ratio)": round(report.judged_busy_ratio, 4), **evidence},
        process=process.process,
        affected=affected(process),
        wall_ns=report.judged_ns,
    )


def affected(process: Process) -> Affected:
    """Who lost the time."""
    return Affected(process=process.process, pid=process.pid, name=process.name, rank=process.rank)


def period(report: ProfileReport) -> str:
    """Of which time shares are told."""
    return "of its steps" if len(report.steps) >= MIN_STEPS else "of the time that the profile covers"
