"""In an imported profile: the GPU was idle in long gaps while the launching thread ran host code."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO
from ingero.diagnose.causes.host_code import host_bound
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.recorded import GPU_ACTIVITIES
from ingero.diagnose.findings import Finding, Fix, Link
from ingero.diagnose.profile.findings import bottleneck, is_caused_by_host, time_base_words
from ingero.diagnose.profile.idle import HOST
from ingero.diagnose.profile.places import HostPlace
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.words import percent, process_label
from ingero.units import format_counted

CAUSE = host_bound.CAUSE


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes whose GPU waited for pieces of host code for a tenth of their steps."""
    for report in evidence.profiles.reports:
        place = next(iter(report.host_places), None)
        if place and is_caused_by_host(report, report.idle_of(HOST).long_ns, BOTTLENECK_RATIO):
            yield _finding(report, place)


def _finding(report: ProfileReport, place: HostPlace) -> Finding:
    lost_ns = report.idle_of(HOST).long_ns
    return bottleneck(
        report,
        cause=CAUSE,
        resource="host code",
        lost_ns=lost_ns,
        summary=f"{process_label(report.process)} ran host code while the GPU was idle "
        f"{percent(lost_ns / report.judged_ns)} "
        f"{time_base_words(report)}, most of it {place.text}",
        line=place.line,
        links=(
            Link(
                text=f"the launching thread was {place.text} in {format_counted(place.gaps, 'long idle gap')}",
                seen_ns=place.idle_ns,
                structure="ranges and stacks of the thread whose launch ended the gap",
                order="after the last work was done, before the next launch",
            ),
        ),
        fixes=(Fix(text="move this work into data workers, or out of the step"),),
        evidence={"host code in long gaps (ratio)": round(lost_ns / report.judged_ns, 4)},
    )


RULE = Rule(
    cause=CAUSE,
    title="time was lost in the program's own host code (imported profiles)",
    order=60,
    needs=(GPU_ACTIVITIES,),
    shows="idle gaps of the GPU of a millisecond and more, as measured, and the line or range that the thread was in "
    "that launched next",
    limits="a line is named where the profile holds Python stacks; whether the thread was running is not in a profile",
    find_events=find_events,
)
