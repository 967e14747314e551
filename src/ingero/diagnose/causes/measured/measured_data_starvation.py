"""In an imported profile: the GPU was idle while the launching thread was in the data loader."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO
from ingero.diagnose.causes.data import data_starvation
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.recorded import GPU_ACTIVITIES
from ingero.diagnose.findings import Finding, Fix, Link
from ingero.diagnose.profile.findings import bottleneck, is_caused_by_host, time_base_words
from ingero.diagnose.profile.idle import INPUT
from ingero.diagnose.profile.places import WaitPlace
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.words import percent, process_label
from ingero.units import format_counted, format_ns

CAUSE = data_starvation.CAUSE
_MIN_WAIT_RATIO = 0.05  # of the judged time: a shorter wait did not keep the queue from being filled


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """Processes whose GPU waited for input data for a tenth of their steps."""
    for report in evidence.profiles.reports:
        share = report.idle_of(INPUT)
        if is_caused_by_host(report, share.idle_ns, BOTTLENECK_RATIO):
            yield _finding(report)


def _finding(report: ProfileReport) -> Finding:
    share = report.idle_of(INPUT)
    place = next(iter(report.input_places), None)
    emptied = report.emptied if report.emptied and _is_long(report, report.emptied) else None
    where = f", {place.text}" if place else ""
    return bottleneck(
        report,
        cause=CAUSE,
        resource="data",
        lost_ns=share.idle_ns,
        summary=f"{process_label(report.process)} waited for input data while the GPU was idle {percent(share.ratio)} "
        f"{time_base_words(report)}{where}",
        links=[*_loading_links(report), *([_emptying_wait_link(emptied)] if emptied else [])],
        line=emptied.line if emptied else None,
        fixes=(Fix(text="load in workers while the GPU computes", command="DataLoader(num_workers=4)"),),
        evidence={"input data (ratio)": round(share.ratio, 4)},
    )


def _loading_links(report: ProfileReport) -> Iterator[Link]:
    for place in report.input_places[:1]:
        yield Link(
            text=f"the launching thread was {place.text} in {format_counted(place.gaps, 'long idle gap')}",
            seen_ns=place.idle_ns,
            structure="ranges of the data loader on the thread whose launch ended the gap",
            order="between the last work of one batch and the first launch of the next",
        )


def _emptying_wait_link(wait: WaitPlace) -> Link:
    return Link(
        text=f"before it waited until the GPU was done: {wait.text}, {format_ns(wait.waited_ns / wait.count)} each",
        seen_ns=wait.waited_ns,
        structure="the longest wait before each of these gaps",
        order="nothing was queued behind it, so that the GPU had no work while data was loaded",
    )


def _is_long(report: ProfileReport, wait: WaitPlace) -> bool:
    return wait.waited_ns >= _MIN_WAIT_RATIO * report.judged_ns


RULE = Rule(
    cause=CAUSE,
    title="no input data was ready for the GPU (imported profiles)",
    order=40,
    needs=(GPU_ACTIVITIES,),
    shows="idle gaps of the GPU, as measured, in which the thread that launched next was in a range of the data "
    "loader; the wait that had emptied the launch queue, with its line",
    limits="what the data loader's workers did is not in a profile; a loader that marks no range is host code",
    find_events=find_events,
)
