"""Ranks waited in their collectives for one rank that came late."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.excess import DEVICE
from ingero.diagnose.model import Bucket, Culprit, Finding, Link, Part
from ingero.diagnose.rule import Rule
from ingero.diagnose.rules import gpu_throttled

CAUSE = "nccl-straggler"
MIN_OVERLAP = 0.5  # of the shorter of the two time ranges
MIN_KEPT = 0.5  # of a device wait, lost by a peer to lowered clocks; less, and the wait has another reason
MIN_OWN = 0.5  # of the straggler's lost time lies outside the wait for its own device


def find(case: Case) -> Iterator[Finding]:
    """Device wait of a rank while another rank of its communicator lost the time elsewhere, or to lowered clocks."""
    waited = case.buckets.get(Bucket(Part.GPU, DEVICE), 0)
    found = _kept_waiting_by(case) if waited > 0 else None
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
    for other in _peers(case):
        if (ns := _throttled_ns(other)) and ns >= MIN_KEPT * _device_ns(case):
            yield other, ns, f"the clocks of the GPU of {rank_name(other)} were lowered by as much as it was slower"


def _throttled_ns(case: Case) -> int:
    """What a rank lost by lowered clocks of its own GPU, told already or not."""
    told = [one for one in case.findings if one.cause == gpu_throttled.CAUSE]
    return sum(one.lost_ns for one in told or gpu_throttled.find(case))


def straggler(case: Case) -> Case | None:
    """The peer that lost its time outside the GPU at the same time, with the least device wait.

    Against the same reference: what a peer's host always takes is in the usual wait of the others.
    """
    return min((other for other in _peers(case) if _is_late(other, case)), key=_device_ns, default=None)


def _peers(case: Case) -> list[Case]:
    """The cases of peers at the same time, against the same kind of reference."""
    peers = case.evidence.peers(case.process.process)
    mine = [one for one in case.siblings if one.process.process in peers and one.kind is case.kind]
    return [one for one in mine if _overlap(case, one) >= MIN_OVERLAP]


def rank_name(case: Case) -> str:
    """The rank of a process, its pid where that is not known."""
    return case.evidence.rank_name(case.process.process)


def _device_ns(case: Case) -> int:
    return case.buckets.get(Bucket(Part.GPU, DEVICE), 0)


def _is_late(other: Case, case: Case) -> bool:
    return other.host_ns >= MIN_OWN * other.lost_ns and _device_ns(other) < _device_ns(case)


def _overlap(case: Case, other: Case) -> float:
    """Of the shorter one: in a long time range a rank may have waited for one that was late in a part of it."""
    begin, end = max(case.window.begin_ns, other.window.begin_ns), min(case.window.end_ns, other.window.end_ns)
    return (end - begin) / max(min(case.window.duration_ns, other.window.duration_ns), 1)


RULE = Rule(
    cause=CAUSE,
    title="one rank kept the others waiting in their collectives",
    order=60,
    needs=("sync_intervals", "communicators", "NCCL"),
    shows="the rank with the least GPU wait of those that share a communicator, or one whose GPU lowered its "
    "clocks and not theirs, and what it lost its time to",
    limits="ranks on nodes whose recordings are not merged are not seen; then the wait looks like a slower GPU",
    find=find,
)
