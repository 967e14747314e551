"""The launching thread waited for a lock that another thread of its process held."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.host_code.thread_waits import Wait, own_thread_wait
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Fact, Finding, Fix, Link
from ingero.diagnose.samples.stack_samples import at

CAUSE = "lock-contention"


def explain(case: Case) -> Iterator[Finding]:
    """Sleep on the critical path that another thread of the process ended, with the waiter not in a queue."""
    wait = own_thread_wait(case, Wait.LOCK)
    if wait is None:
        return
    claims = case.claimable_on_path(wait.is_on_path)
    if not claims:
        return
    lost, holder = sum(claims.values()), wait.partner
    facts: dict[str, Fact] = {"holder": holder, "waits at": str(wait.waiter_line or ""), "samples": wait.samples}
    crowded_ns = sum(segment.duration_ns for segment in case.waits if wait.is_crowded(segment))
    yield Finding(
        cause=CAUSE,
        resource="lock",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} waiting{at(wait.waiter_line)}: its thread {holder} held the lock"
        f"{at(wait.partner_line)}",
        claims=claims,
        culprits=(wait.culprit(lost),),
        line=wait.partner_line or wait.waiter_line,
        chain=(
            Link(
                text=f"the launching thread was sleeping{at(wait.waiter_line)}",
                seen_ns=lost,
                structure=f"{holder} woke it; its stack was in no queue",
                order=f"{holder} was busy until it woke the sleeper",
            ),
        ),
        fixes=(Fix(text="hold the lock for a shorter time: copy under it, work outside it"),),
        evidence=facts | ({"holder waited for a CPU that its job had (ns)": crowded_ns} if crowded_ns else {}),
    )


RULE = Rule(
    cause=CAUSE,
    title="another thread of the process held a lock",
    order=36,
    needs=("sync_intervals", "offcpu", "stack_samples"),
    shows="sleeps of the launching thread that another thread of its process ended, both with their lines",
    limits="which lock it was is not read; a queue written in C looks like a lock; native locks need Python frames",
    explain=explain,
)
