"""Ranks waited in their collectives for one rank that came late."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases import Case
from ingero.diagnose.excess import DEVICE
from ingero.diagnose.model import Bucket, Culprit, Finding, Link, Part
from ingero.diagnose.rule import Rule

CAUSE = "nccl-straggler"
MIN_OVERLAP = 0.5  # of the waiting rank's stretch
MIN_OWN = 0.5  # of the straggler's loss lies outside the wait for its own device


def find(case: Case) -> Iterator[Finding]:
    """Device wait of a rank while another rank of its communicator lost the time elsewhere."""
    waited = case.buckets.get(Bucket(Part.DEVICE, DEVICE), 0)
    late = straggler(case)
    if late is None or waited <= 0:
        return
    claims = case.take((Part.DEVICE,), (DEVICE,), min(waited, late.host_ns))
    if not claims:
        return
    lost = sum(claims.values())
    name = rank_name(late)
    yield Finding(
        cause=CAUSE,
        resource="collective",
        root=name,
        summary=f"ranks waited for {name} in their collectives; {case.who} lost {case.amount(lost)} by that",
        claims=claims,
        culprits=(Culprit(pid=late.process.pid, name=late.process.name, lost_ns=lost),),
        absorbs=(late.process.process,),
        chain=(
            Link(
                text=f"{rank_name(case)} waited for its device in a collective that {name} entered late",
                seen_ns=lost,
                structure="both use one communicator; of its ranks this one waited least for its device",
                order=f"{name} lost the time before its launches, the others after theirs",
            ),
        ),
        evidence={"straggler": name, "its own lost time (ns)": late.host_ns},
    )


def straggler(case: Case) -> Case | None:
    """The peer that lost its time outside the device at the same time, with the least device wait.

    Against the same reference: what a peer's host always takes is in the usual wait of the others.
    """
    peers = case.evidence.peers(case.process.process)
    late = [
        other
        for other in case.siblings
        if other.process.process in peers
        and other.kind is case.kind
        and _overlap(case, other) >= MIN_OVERLAP
        and _is_late(other, case)
    ]
    return min(late, key=_device_ns, default=None)


def rank_name(case: Case) -> str:
    """The rank of a process, its pid where that is not known."""
    return f"rank {case.process.rank}" if case.process.rank is not None else f"pid {case.process.pid}"


def _device_ns(case: Case) -> int:
    return case.buckets.get(Bucket(Part.DEVICE, DEVICE), 0)


def _is_late(other: Case, case: Case) -> bool:
    return other.host_ns >= MIN_OWN * other.loss_ns and _device_ns(other) < _device_ns(case)


def _overlap(case: Case, other: Case) -> float:
    begin = max(case.window.begin_ns, other.window.begin_ns)
    return (min(case.window.end_ns, other.window.end_ns) - begin) / max(case.window.duration_ns, 1)


RULE = Rule(
    cause=CAUSE,
    title="one rank kept the others waiting in their collectives",
    order=60,
    needs=("epochs", "communicators", "NCCL"),
    shows="the rank with the least device wait of those that share a communicator, and what it lost its time to",
    limits="ranks on nodes whose recordings are not merged are not seen; then the wait is a slower device",
    find=find,
)
