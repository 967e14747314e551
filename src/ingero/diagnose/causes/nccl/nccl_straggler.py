"""Ranks waited in their collectives for one late rank."""

from __future__ import annotations

from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.causes.gpu import gpu_throttled
from ingero.diagnose.causes.nccl.busy_peers import BusyPeer, busy_peer, gpu_wait_ns, peers
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import Culprit, Finding, Fix, Link, Part
from ingero.diagnose.lost_time.buckets import GPU_EXECUTION
from ingero.diagnose.samples.stack_samples import at

CAUSE = "nccl-straggler"
MIN_KEPT_WAITING_SHARE = 0.5  # of a GPU wait, lost by a peer to lowered clocks; below it the wait has another reason
MIN_HOST_SHARE = 0.5  # of the straggler's lost time that lies outside its own GPU wait


def explain(case: Case) -> Iterator[Finding]:
    """GPU wait of a rank while a peer lost time elsewhere or to lowered clocks, or had more work and lost none."""
    waited = gpu_wait_ns(case)
    if waited <= 0:
        return
    found, busy = _kept_waiting_by(case), busy_peer(case)
    if busy and (found is None or found[1] < busy.wait_ns):
        yield from _busy_peer_finding(case, busy)
        return
    if found is None:
        return
    late, late_ns, why = found
    claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), min(waited, late_ns))
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
        absorbed_processes=(late.process.process,),
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


def _busy_peer_finding(case: Case, busy: BusyPeer) -> Iterator[Finding]:
    claims = case.claimable((Part.GPU,), (GPU_EXECUTION,), busy.wait_ns)
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
        absorbed_processes=(busy.process.process,),
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
    """The peer that a rank waited for, its own lost time, and how that is known."""
    late = straggler(case)
    if late is not None:
        return late, late.host_ns, "of all its ranks this one waited least for its GPU"
    return max(_throttled_peers(case), key=lambda peer: peer[1], default=None)


def _throttled_peers(case: Case) -> Iterator[tuple[Case, int, str]]:
    """Peers whose GPU was slower by lowered clocks, where the rank's own was not."""
    if case.evidence.why_unavailable(gpu_throttled.RULE.needs) or _throttled_ns(case):
        return
    for other in peers(case):
        if (ns := _throttled_ns(other)) and ns >= MIN_KEPT_WAITING_SHARE * gpu_wait_ns(case):
            yield other, ns, f"the clocks of the GPU of {rank_name(other)} were lowered by as much as it was slower"


def _throttled_ns(case: Case) -> int:
    """Time that a rank lost to lowered clocks of its own GPU, already claimed or not."""
    throttling_findings = [finding for finding in case.findings if finding.cause == gpu_throttled.CAUSE]
    return sum(finding.lost_ns for finding in throttling_findings or gpu_throttled.explain(case))


def straggler(case: Case) -> Case | None:
    """The peer that lost its time on the host simultaneously, with the least GPU wait.

    Both are compared with the same baseline: what a peer's host always takes is in the others' baseline wait.
    """
    return min((other for other in peers(case) if _is_straggler_for(other, case)), key=gpu_wait_ns, default=None)


def rank_name(case: Case) -> str:
    """A rank by its number, or its pid where that is unknown."""
    return case.evidence.rank_name(case.process.process)


def _is_straggler_for(other: Case, case: Case) -> bool:
    return other.host_ns >= MIN_HOST_SHARE * other.lost_ns and gpu_wait_ns(other) < gpu_wait_ns(case)


RULE = Rule(
    cause=CAUSE,
    title="one rank kept the others waiting in their collectives",
    order=60,
    needs=("sync_intervals", "communicators", "NCCL"),
    shows="the rank with the least GPU wait of those that share a communicator, or one whose GPU lowered its "
    "clocks and not theirs, and what it lost its time to; one that launched more, or made other steps, meanwhile",
    limits="ranks on nodes whose recordings are not merged are not seen; then the wait looks like a slower GPU",
    explain=explain,
)
