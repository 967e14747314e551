"""The thread that feeds the GPU slept because its own program told it to."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, FindingKind, Fix, Link
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.diagnose.samples.stack_samples import SLEEP, at, gets_an_item, matching, spans_of, spent, stays

CAUSE = "sleep-in-loop"
_CLEAR = 0.7  # of the sleeping samples


def find(case: Case) -> Iterator[Finding]:
    """Sleep of the feeding thread that its own timer ended."""

    def is_timed(one: Segment) -> bool:
        return one.depth == 0 and one.state == "sleep" and one.waker_kind == "timer"

    waits = [one for one in case.waits if is_timed(one)]
    claims = case.take_path(is_timed)
    if not waits or not claims:
        return
    lost = sum(claims.values())
    found = stays(case.evidence, case.process.process, (case.window,), spans_of(waits), SLEEP)
    if matching(found, gets_an_item) >= _CLEAR:
        return  # PyTorch looks every five seconds whether the workers that it waits for still live
    asleep = spent(found)
    if case.kind is FindingKind.BOTTLENECK and asleep.line is None:
        return  # a loop that has always slept may wait for work: only its line tells
    yield Finding(
        cause=CAUSE,
        resource="timer",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} sleeping on a timer{at(asleep.line)}",
        claims=claims,
        line=asleep.line,
        chain=(
            Link(
                text=f"the launching thread was sleeping{at(asleep.line)}",
                seen_ns=lost,
                expected_ns=0,
                structure=f"{len(waits)} sleeps that only a timer ended",
                order=f"{case.when_starving}, before the next launch",
            ),
        ),
        fixes=(Fix(text="remove the sleep from the step (a callback, a retry, a rate limit)"),),
        evidence={"sleeps": len(waits), "samples": asleep.count},
    )


RULE = Rule(
    cause=CAUSE,
    title="the launching thread slept on a timer",
    order=45,
    needs=("sync_intervals", "offcpu"),
    shows="sleeps of the launching thread that its own timer ended, with the line at which they began",
    limits="a loop that polls for work counts as no work requested; one that finds work at its first look each time "
    "looks like a pause",
    find=find,
)
