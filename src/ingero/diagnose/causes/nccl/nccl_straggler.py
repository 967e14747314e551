"""Ranks waited in their collectives for one rank that came late."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.gpu import gpu_throttled
from ingero.diagnose.causes.nccl.busy_peers import BusyPeer, busy_peer, device_ns, peers
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Culprit, Finding, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import DEVICE
from ingero.diagnose.samples.stack_samples import at

CAUSE = "nccl-straggler"
MIN_KEPT = 0.5  # of a device wait, lost by a peer to lowered clocks; less, and the wait has another reason
MIN_OWN = 0.5  # of the straggler's lost time lies outside the wait for its own device


def find(case: Case) -> Iterator[Finding]:
    """Device wait of a rank while another rank of its communicator lost the time elsewhere, or to lowered clocks.

    Or had more to do: then it has lost none.
    """
    waited = device_ns(case)
    if waited <= 0:
        return
    found, busy = _kept_waiting_by(case), busy_peer(case)
    if busy and (found is None or found[1] < busy.ns):
        yield from _of_busy(case, busy)
        return
    if found is None:
        return
    late, late_ns, why = found
    claims = case.take((Part.GPU,), (DEVICE,), min(waited, late_ns))
    if not claims:
        return
    lost = sum(claims.values())
    name = rank_name(late)
    yield Finding(
        cause=CAUSE,
        resource="collective",
        root=name,
        summary=f"{name} kept the other ranks waiting in collectives; {case.who} lost {case.amount(lost)}",
        claims=claims,
        culprits=(Culprit(pid=late.process.pid, name=late.process.name, lost_ns=lost),),
        absorbs=(late.process.process,),
        chain=(
            Link(
                text=f"{rank_name(case)} waited for its GPU in a collective that {name} entered late",
                seen_ns=lost,
                structure=f"both use one communicator; {why}",
                order=f"{name} lost the time before it could enter, the others after they had",
            ),
        ),
        evidence={"straggler": name, "its own lost time (ns)": late_ns},
    )


def _of_busy(case: Case, busy: BusyPeer) -> Iterator[Finding]:
    claims = case.take((Part.GPU,), (DEVICE,), busy.ns)
    if not claims:
        return
    lost, name = sum(claims.values()), case.evidence.rank_name(busy.process.process)
    yield Finding(
        cause=CAUSE,
        resource="collective",
        root=name,
        summary=f"{name} kept the other ranks waiting in collectives: it {busy.doing}{at(busy.line)}; {case.who} lost "
        f"{case.amount(lost)}",
        claims=claims,
        culprits=(Culprit(pid=busy.process.pid, name=busy.process.name, lost_ns=lost),),
        line=busy.line,
        absorbs=(busy.process.process,),
        chain=(
            Link(
                text=f"{rank_name(case)} waited for its GPU in a collective while {name} {busy.doing}",
                seen_ns=lost,
                structure=f"both use one communicator; {busy.why}",
                order=f"{name} was at it while the others waited",
            ),
        ),
        fixes=(
            Fix(text="give each rank as much to do: balance lengths across ranks, not only counts"),
            Fix(text="or let all ranks do it: an evaluation in parts, a checkpoint in shards or in the background"),
        ),
        evidence={"straggler": name, "because": "more to do"},
    )


def _kept_waiting_by(case: Case) -> tuple[Case, int, str] | None:
    """The peer that a rank waited for, what that lost by itself, and how that is known."""
    late = straggler(case)
    if late is not None:
        return late, late.host_ns, "of all its ranks this one waited least for its GPU"
    return max(_throttled_peers(case), key=lambda one: one[1], default=None)


def _throttled_peers(case: Case) -> Iterator[tuple[Case, int, str]]:
    """Peers whose device was slower by lowered clocks, where that does not hold for its own."""
    if case.evidence.missing(gpu_throttled.RULE.needs) or _throttled_ns(case):
        return
    for other in peers(case):
        if (ns := _throttled_ns(other)) and ns >= MIN_KEPT * device_ns(case):
            yield other, ns, f"the clocks of the GPU of {rank_name(other)} were lowered by as much as it was slower"


def _throttled_ns(case: Case) -> int:
    """What a rank lost by lowered clocks of its own GPU, told already or not."""
    told = [one for one in case.findings if one.cause == gpu_throttled.CAUSE]
    return sum(one.lost_ns for one in told or gpu_throttled.find(case))


def straggler(case: Case) -> Case | None:
    """The peer that lost its time outside the GPU at the same time, with the least device wait.

    Against the same reference: what a peer's host always takes is in the usual wait of the others.
    """
    return min((other for other in peers(case) if _is_late(other, case)), key=device_ns, default=None)


def rank_name(case: Case) -> str:
    """The rank of a process, its pid where that is not known."""
    return case.evidence.rank_name(case.process.process)


def _is_late(other: Case, case: Case) -> bool:
    return other.host_ns >= MIN_OWN * other.lost_ns and device_ns(other) < device_ns(case)


RULE = Rule(
    cause=CAUSE,
    title="one rank kept the others waiting in their collectives",
    order=60,
    needs=("sync_intervals", "communicators", "NCCL"),
    shows="the rank with the least GPU wait of those that share a communicator, or one whose GPU lowered its "
    "clocks and not theirs, and what it lost its time to; one that launched more, or made other steps, meanwhile",
    limits="ranks on nodes whose recordings are not merged are not seen; then the wait looks like a slower GPU",
    find=find,
)
