"""Findings about a profiled process: when a lost time is worth reporting, and the finding of a bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingero.diagnose.findings import Affected, Bucket, CodeLine, Fact, Finding, FindingKind, Fix, Link, Part
from ingero.diagnose.lost_time.time_ranges import MIN_LOST_NS
from ingero.diagnose.profile.pacing import Pacing
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.steps import MIN_STEPS
from ingero.store.records import Process, Window

_HOST_PACED = (Pacing.HOST, Pacing.MIXED)


def is_caused_by_host(report: ProfileReport, lost_ns: int, min_ratio: float) -> bool:
    """Whether a lost time is worth reporting and the host holds the GPU up; in a GPU-bound program it does not."""
    return report.paced_by in _HOST_PACED and is_worth_reporting(report, lost_ns, min_ratio)


def is_worth_reporting(report: ProfileReport, lost_ns: int, min_ratio: float) -> bool:
    """Whether at least min_ratio of the typical steps was lost; without enough steps, at least MIN_LOST_NS, too."""
    typical = sum(step.is_typical for step in report.steps)
    is_sure = typical >= MIN_STEPS or lost_ns >= MIN_LOST_NS
    return is_sure and lost_ns >= min_ratio * report.judged_ns


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
    """The process as the one that lost the time."""
    return Affected(process=process.process, pid=process.pid, name=process.name, rank=process.rank)


def time_base_words(report: ProfileReport) -> str:
    """The words for the time that shares are of: the steps, else the time that the profile covers."""
    return "of its steps" if len(report.steps) >= MIN_STEPS else "of the time that the profile covers"
