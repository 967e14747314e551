"""The critical path waited for a packet that was lost and retransmitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.kernel_waits import PathWaits
from ingero.diagnose.causes.data.producers import workers_of
from ingero.diagnose.causes.network.connections import Connections
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import CodeLine, Finding, Fix, Link
from ingero.diagnose.offcpu.critical_path import PathSegment
from ingero.store.host_events import HostEvent
from ingero.units import format_count, format_ns

CAUSE = "network-retransmit"


def explain(case: Case) -> Iterator[Finding]:
    """Waits for the network during which a segment was retransmitted on a connection of the waiting process."""
    if not any(_is_worker_network_wait(case, wait) for wait in case.waits):
        return
    connections = Connections(case.evidence, case.window, case.family)
    if not connections.retransmits:
        return

    def has_retransmit(segment: PathSegment) -> bool:
        return bool(_retransmits_in(connections, case, segment))

    paths = PathWaits(case)
    claims = paths.claim(has_retransmit)
    if not claims:
        return
    segments = [segment for segment in paths.all() if has_retransmit(segment)]
    events = {
        id(event): event for segment in segments for event in _retransmits_in(connections, case, segment)
    }.values()
    lost = sum(claims.values())
    peers = Counter(connections.peer_of(event) for event in events)
    peer, _ = peers.most_common(1)[0]
    worst = max(segments, key=lambda segment: segment.duration_ns)
    packets = sum(event.segments or 1 for event in events)
    yield Finding(
        cause=CAUSE,
        resource="network",
        root=peer,
        summary=f"{case.who} lost {case.amount(lost)} while {case.thread_name(worst)} [{worst.pid}] waited for "
        f"{format_count(packets)} retransmitted packets on its connection with {peer}",
        claims=claims,
        line=_line(case, worst),
        chain=(
            Link(
                text=f"{format_count(len(segments))} waits for the network held a retransmit, the longest "
                f"{format_ns(worst.duration_ns)}",
                seen_ns=sum(segment.duration_ns for segment in segments),
                expected_ns=0,
                structure="sleeps that the network ended, with a retransmit on a connection of that process inside",
                order="the segment was sent again before the wait ended",
            ),
        ),
        fixes=(
            Fix(
                text="find the packet loss: drops of the interface, of the switch port",
                command="ip -s link; nstat -az | grep -i retrans",
            ),
            Fix(text="list the affected connections", command="ss -tino state established"),
        ),
        evidence={"retransmitted segments": packets, "waits": len(segments), "peer": peer},
        waited_for_pids=workers_of(case, segments),
    )


def _is_worker_network_wait(case: Case, segment: PathSegment) -> bool:
    """Whether a worker waited for the network; a process that waits for it itself has no work requested."""
    is_worker = segment.pid in case.family and segment.pid != case.process.pid
    return is_worker and segment.state == "sleep" and segment.waker_kind == "network"


def _retransmits_in(connections: Connections, case: Case, segment: PathSegment) -> list[HostEvent]:
    return (
        connections.retransmitted(segment.pid, segment.begin_ns, segment.end_ns)
        if _is_worker_network_wait(case, segment)
        else []
    )


def _line(case: Case, worst: PathSegment) -> CodeLine | None:
    process = case.evidence.process_at(worst.pid) or case.process
    return case.evidence.sampled_line(case.window, process.process, states=("sleep",))


RULE = Rule(
    cause=CAUSE,
    title="waited for TCP retransmits",
    order=24,
    needs=("sync_intervals", "offcpu", "TCP", "NET"),
    shows="the sleeps on the critical path that the network ended and that hold a retransmit of a connection of that "
    "process: of its own, or of the other end where that is on this host",
    limits="retransmits by a peer on another host are not visible: then the wait is the worker's, and data-starvation "
    "reports network; RDMA does not pass through TCP; a process that waits for the network itself, without a worker, "
    "counts as one with no work requested",
    explain=explain,
)
