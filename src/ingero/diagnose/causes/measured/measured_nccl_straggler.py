"""In imported profiles of several ranks: one rank came last to most collectives, and the others waited for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingero.diagnose.cases.case_search import BOTTLENECK_RATIO
from ingero.diagnose.causes.nccl import nccl_straggler
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.evidence.recorded import GPU_ACTIVITIES
from ingero.diagnose.findings import Culprit, Finding, Link, Part
from ingero.diagnose.profile.collectives import Collective, arrived_last_counts
from ingero.diagnose.profile.findings import bottleneck, is_worth_reporting
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.words import percent, process_label
from ingero.units import format_count

CAUSE = nccl_straggler.CAUSE
_MIN_LAST_RATIO = 2 / 3  # of the collectives: healthy ranks are last in up to 55% of them (real-recordings, JAX FSDP)


def find_events(evidence: Evidence) -> Iterator[Finding]:
    """The rank that most collectives waited for, where that cost the others a tenth of their time."""
    collectives = evidence.profiles.collectives
    counts = arrived_last_counts(collectives)
    late = max(counts, key=lambda process: counts[process], default=None)
    if late is None or counts[late] < _MIN_LAST_RATIO * len(collectives):
        return
    last_to = [collective for collective in collectives if collective.last == late]
    others = [report for report in evidence.profiles.reports if report.process.process != late]
    worst = max(others, key=lambda report: _waited_ns(last_to, report), default=None)
    if worst and is_worth_reporting(worst, _waited_ns(last_to, worst), BOTTLENECK_RATIO):
        straggler = next(candidate for candidate in evidence.profiles.reports if candidate.process.process == late)
        yield _finding(worst, straggler, last_to, len(collectives))


def _waited_ns(collectives: list[Collective], report: ProfileReport) -> int:
    number = report.process.process
    return sum(part.waited_ns for collective in collectives for part in collective.parts if part.process == number)


def _finding(worst: ProfileReport, late: ProfileReport, last_to: list[Collective], total: int) -> Finding:
    lost_ns = _waited_ns(last_to, worst)
    often = f"{format_count(len(last_to))} of {format_count(total)} collectives"
    finding = bottleneck(
        worst,
        cause=CAUSE,
        resource="collective",
        lost_ns=lost_ns,
        part=Part.GPU,
        summary=f"{process_label(late.process)} came last to {often}; {process_label(worst.process)} waited for it "
        f"{percent(lost_ns / worst.judged_ns)} of its time",
        links=(
            Link(
                text=f"the kernels of {often} were shortest on {process_label(late.process)}",
                seen_ns=lost_ns,
                structure="a collective's kernel runs from when its rank arrives until all have",
                order="the others had begun theirs before",
            ),
        ),
        fixes=(),
        evidence={"collectives": total, "last to (count)": len(last_to)},
    )
    culprit = Culprit(pid=late.process.pid, name=late.process.name, lost_ns=lost_ns)
    return replace(finding, root=process_label(late.process), culprits=(culprit,))


RULE = Rule(
    cause=CAUSE,
    title="one rank kept the others waiting in their collectives (imported profiles)",
    order=60,
    needs=(GPU_ACTIVITIES,),
    shows="for each collective the rank whose kernel was shortest, which came last, and what the others waited",
    limits="needs the profiles of the ranks in one recording; why a rank came late is in its own diagnosis",
    find_events=find_events,
)
