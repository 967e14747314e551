"""The process was stopped by a signal or a debugger."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.model import Culprit, Finding, Fix, Link
from ingero.diagnose.rule import Rule
from ingero.diagnose.runnable import HOST_PARTS
from ingero.ops import HostOp, Source

CAUSE = "stopped"


def find(case: Case) -> Iterator[Finding]:
    """Time of the stopped clock, with the sender of the signal."""
    claims = case.take(HOST_PARTS, ("stopped",))
    if not claims:
        return
    lost = sum(claims.values())
    events = case.evidence.events(case.window, (Source.HOST,), case.process.process)
    signals = events[events["op"] == int(HostOp.STOP_SIGNAL)]
    senders = {int(one["arg1"]): case.evidence.name_of_pid(int(one["arg1"])) for one in signals}
    by = " by " + " and ".join(f"{name or 'pid'} [{pid}]" for pid, name in senders.items()) if senders else ""
    yield Finding(
        cause=CAUSE,
        resource="signal",
        root=str(case.process.pid),
        summary=f"{case.who} lost {case.amount(lost)} because it was stopped{by}",
        claims=claims,
        culprits=tuple(Culprit(pid=pid, name=name, lost_ns=lost) for pid, name in senders.items()),
        chain=(
            Link(
                text=f"the process was stopped{by}",
                seen_ns=lost,
                expected_ns=0,
                structure="the stopped clock of the thread on the path",
                order="from the signal that stops to the one that continues",
            ),
        ),
        fixes=(Fix(text="let it continue", command=f"kill -CONT {case.process.pid}"),),
        evidence={"signals": len(signals)},
    )


RULE = Rule(
    cause=CAUSE,
    title="stopped by a signal or a debugger",
    order=10,
    needs=("epochs",),
    shows="the stopped clock, and the signal with its sender",
    limits="a debugger stops without a signal that can be attributed",
    find=find,
)
