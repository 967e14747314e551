"""The launching thread slept on a timer set by its own program."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.host_code.polled_waits import is_timed, looks_per_step
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, FindingKind, Fix, Link
from ingero.diagnose.samples.stack_samples import (
    SLEEP,
    at,
    gets_an_item,
    group_samples,
    matching_share,
    sampled_time,
    spans_of,
)

CAUSE = "sleep-in-loop"
_MIN_SHARE_OF_SAMPLES = 0.7  # of the sleeping samples


def explain(case: Case) -> Iterator[Finding]:
    """Sleep of the launching thread that its own timer ended."""
    waits = [wait for wait in case.waits if is_timed(wait)]
    claims = case.claimable_on_path(is_timed)
    if not waits or not claims:
        return
    lost = sum(claims.values())
    groups = group_samples(case.evidence, case.process.process, (case.window,), spans_of(waits), SLEEP)
    if matching_share(groups, gets_an_item) >= _MIN_SHARE_OF_SAMPLES:
        return  # PyTorch checks every five seconds whether its workers are alive
    asleep = sampled_time(groups)
    if case.kind is FindingKind.BOTTLENECK and asleep.line is None:
        return  # a loop that has always slept may wait for work: only a line proves otherwise
    looks = looks_per_step(case, waits)
    looked = f", {looks:.0f} times per {case.noun}: it looks again and again for something" if looks else ""
    yield Finding(
        cause=CAUSE,
        resource="timer",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} sleeping on a timer{at(asleep.line)}{looked}",
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
        fixes=(
            Fix(text="find out what it waits for: the sleeps only make it some milliseconds later")
            if looks
            else Fix(text="remove the sleep from the step (a callback, a retry, a rate limit)"),
        ),
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
    explain=explain,
)
