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
from ingero.diagnose.profile.collectives import Collective, last_counts
from ingero.diagnose.profile.findings import bottleneck, is_worth_telling
from ingero.diagnose.profile.report import ProfileReport
from ingero.diagnose.profile.words import percent, who
from ingero.units import format_count

CAUSE = nccl_straggler.CAUSE
_MOSTLY = 2 / 3  # of the collectives: healthy ranks are last in up to 55% of them (real-recordings, JAX FSDP)


def watch(evidence: Evidence) -> Iterator[Finding]:
    """The rank that most collectives waited for, where that cost the others a tenth of their time."""
    found = evidence.profiles.collectives
    counts = last_counts(found)
    late = max(counts, key=lambda process: counts[process], default=None)
    if late is None or counts[late] < _MOSTLY * len(found):
        return
    mine = [collective for collective in found if collective.last == late]
    others = [report for report in evidence.profiles.reports if report.process.process != late]
    worst = max(others, key=lambda report: _waited_ns(mine, report), default=None)
    if worst and is_worth_telling(worst, _waited_ns(mine, worst), BOTTLENECK_RATIO):
        straggler = next(one for one in evidence.profiles.reports if one.process.process == late)
        yield _finding(worst, straggler, mine, len(found))


def _waited_ns(mine: list[Collective], report: ProfileReport) -> int:
    number = report.process.process
    return sum(part.waited_ns for collective in mine for part in collective.parts if part.process == number)


def _finding(worst: ProfileReport, late: ProfileReport, mine: list[Collective], total: int) -> Finding:
    lost_ns = _waited_ns(mine, worst)
    often = f"{format_count(len(mine))} of {format_count(total)} collectives"
    finding = bottleneck(
        worst,
        cause=CAUSE,
        resource="collective",
        lost_ns=lost_ns,
        part=Part.GPU,
        summary=f"{who(late.process)} came last to {often}; {who(worst.process)} waited for it "
        f"{percent(lost_ns / worst.judged_ns)} of its time",
        links=(
            Link(
                text=f"the kernels of {often} were shortest on {who(late.process)}",
                seen_ns=lost_ns,
                structure="a collective's kernel runs from when its rank arrives until all have",
                order="the others had begun theirs before",
            ),
        ),
        fixes=(),
        evidence={"collectives": total, "last to (count)": len(mine)},
    )
    culprit = Culprit(pid=late.process.pid, name=late.process.name, lost_ns=lost_ns)
    return replace(finding, root=who(late.process), culprits=(culprit,))


RULE = Rule(
    cause=CAUSE,
    title="one rank kept the others waiting in their collectives (imported profiles)",
    order=60,
    needs=(GPU_ACTIVITIES,),
    shows="for each collective the rank whose kernel was shortest, which came last, and what the others waited",
    limits="needs the profiles of the ranks in one recording; why a rank came late is in its own diagnosis",
    watch=watch,
)
