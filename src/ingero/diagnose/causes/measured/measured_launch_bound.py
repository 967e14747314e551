"""In an imported profile: the GPU was idle between launches that came one by one."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case_search import WORK_RATIO
from ingero.diagnose.causes.cuda_calls import launch_bound
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.recorded import GPU_ACTIVITIES
from ingero.diagnose.findings import Finding, Fix, Link, Part
from ingero.diagnose.profile.findings import bottleneck, is_caused_by_host, time_base_words
from ingero.diagnose.profile.idle import INPUT
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.words import percent, process_label
from ingero.units import format_count, format_ns

CAUSE = launch_bound.CAUSE


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes whose GPU waited a quarter of their steps from one launch to the next."""
    for report in evidence.profiles.reports:
        if is_caused_by_host(report, short_gaps_ns(report), WORK_RATIO):
            yield _finding(report)


def short_gaps_ns(report: ProfileReport) -> int:
    """Idle time in short gaps, for any reason but input data."""
    return sum(share.idle_ns - share.long_ns for share in report.idle if share.owner != INPUT)


def _finding(report: ProfileReport) -> Finding:
    lost_ns = short_gaps_ns(report)
    each = format_ns(lost_ns / max(report.gaps, 1))
    gaps = f"{format_count(report.gaps)} gaps of {each} on average"
    return bottleneck(
        report,
        cause=CAUSE,
        resource="launches",
        lost_ns=lost_ns,
        part=Part.LAUNCH,
        summary=f"{process_label(report.process)} launched kernels too slowly for the GPU, which was idle "
        f"{percent(lost_ns / report.judged_ns)} {time_base_words(report)} in {gaps}",
        links=(
            Link(
                text="the GPU had finished its queue before the next launch came",
                seen_ns=lost_ns,
                structure="idle gaps of under a millisecond, as the profiler measured them",
                order="each launch was made when the GPU was idle, or too late to reach it in time",
            ),
        ),
        fixes=(
            Fix(text="launch fewer, larger kernels", command="torch.compile(model, mode='reduce-overhead')"),
            Fix(text="or use CUDA graphs for the repeated part"),
        ),
        evidence={"idle gaps": report.gaps},
    )


RULE = Rule(
    cause=CAUSE,
    title="kernels were launched too slowly for the GPU (imported profiles)",
    order=55,
    needs=(GPU_ACTIVITIES,),
    shows="how much of the steps the GPU was idle in gaps of under a millisecond, as measured, and how many there were",
    limits="a profiler that records stacks slows launches itself, by up to as much as they take",
    find_events=find_events,
)
