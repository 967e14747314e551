"""The thread that feeds the GPU waited for the answer of another process that is no worker of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.idle import is_outside
from ingero.diagnose.model import Culprit, Finding, Fix, Link
from ingero.diagnose.places import SLEEP, at, spans_of, spent, stays
from ingero.diagnose.roles import is_asking
from ingero.diagnose.rule import Rule
from ingero.diagnose.waits import Segment
from ingero.program import command

CAUSE = "ipc-bound"


def find(case: Case) -> Iterator[Finding]:
    """Sleep of its own critical-path threads that a process outside the family ended."""

    def is_ipc(one: Segment) -> bool:
        return one.pid == case.process.pid and one.waker_kind == "thread" and is_outside(one, case.family)

    waits = [one for one in case.waits if is_ipc(one)]
    claims = case.take_path(is_ipc) if waits and is_asking(case.evidence, case.process, waits) else {}
    if not claims:
        return
    lost = sum(claims.values())
    by_pid: Counter[int] = Counter()
    for one in waits:
        by_pid[one.waker_pid] += one.duration_ns
    culprits = [
        Culprit(pid=pid, name=case.evidence.waker_names.get(pid, ""), lost_ns=lost * ns // by_pid.total())
        for pid, ns in by_pid.most_common()
    ]
    partner = f"{culprits[0].name or 'pid'} [{culprits[0].pid}]"
    asleep = spent(stays(case.evidence, case.process.process, (case.window,), spans_of(waits), SLEEP))
    yield Finding(
        cause=CAUSE,
        resource="ipc",
        root=str(culprits[0].pid),
        summary=f"{case.who} lost {case.amount(lost)} waiting for the answer of {partner}{at(asleep.line)}",
        claims=claims,
        culprits=tuple(culprits),
        line=asleep.line,
        chain=(
            Link(
                text=f"the launching thread slept until {partner} woke it",
                seen_ns=lost,
                structure="who woke it, a process outside its own tree",
                order="the wait ended with the answer, before the next launch",
            ),
        ),
        fixes=(
            Fix(
                text=f"profile {partner} meanwhile",
                command=command("trace", "--pid", str(culprits[0].pid), as_root=True),
            ),
            Fix(text="or ask for the next answer before this step ends, so that both work side by side"),
        ),
        evidence={"partners": len(by_pid), "samples": asleep.count},
    )


RULE = Rule(
    cause=CAUSE,
    title="another process answered late",
    order=37,
    needs=("sync_intervals", "offcpu"),
    shows="sleeps of the launching thread that another process ended, with that process and the line",
    limits="only where the process is seen to train (data workers of its own) or to ask (a client's frames): else "
    "a wait for another process counts as no work requested",
    find=find,
)
