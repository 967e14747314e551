"""The launching thread ran Python's garbage collector."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.host_cpu_time import claim_run_time, run_growth
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Finding, Fix, Link
from ingero.diagnose.samples.stack_samples import Doing, at

CAUSE = "garbage-collection"


def explain(case: Case) -> Iterator[Finding]:
    """On-CPU time on the critical path in samples that the interpreter marks as collecting."""
    grown = run_growth(case).get(Doing.COLLECTING)
    claims = claim_run_time(case, grown)
    if not grown or not claims:
        return
    lost = sum(claims.values())
    yield Finding(
        cause=CAUSE,
        resource="interpreter",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} in Python garbage collection{at(grown.line)}",
        claims=claims,
        line=grown.line,
        chain=(
            Link(
                text="the launching thread was in garbage collection",
                seen_ns=int(grown.ns),
                expected_ns=0,
                structure=f"{grown.count} samples in which its interpreter was collecting",
                order=case.when_starving,
            ),
        ),
        fixes=(
            Fix(text="exclude long-lived objects from collection", command="gc.collect(); gc.freeze()"),
            Fix(
                text="and collect explicitly, once every N steps",
                command="gc.disable()  # then gc.collect()",
            ),
        ),
        evidence={"samples": grown.count, "sampled (ns)": int(grown.ns)},
    )


RULE = Rule(
    cause=CAUSE,
    title="time was lost in Python garbage collection",
    order=58,
    needs=("sync_intervals", "stack_samples"),
    shows="samples of the launching thread that its interpreter marks as collecting, beyond those of the baseline, "
    "with the line at which the collection began",
    limits="no mark on Python 3.8, 3.14 and later, or without a GIL; a collection in another thread shows as the "
    "interpreter lock",
    explain=explain,
)
