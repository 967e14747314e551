"""Somebody on the critical path waited for a packet that was lost and sent again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ingero.diagnose.cases.case import Case
from ingero.diagnose.cases.kernel_waits import PathWaits
from ingero.diagnose.causes.data.producers import workers_of
from ingero.diagnose.causes.network.connections import Connections
from ingero.diagnose.causes.rule import Rule
from ingero.diagnose.findings import CodeLine, Finding, Fix, Link
from ingero.diagnose.offcpu.critical_path import Segment
from ingero.store.host_events import HostEvent
from ingero.units import format_count, format_ns

CAUSE = "network-retransmit"


def find(case: Case) -> Iterator[Finding]:
    """Waits for the network within which a segment of the process's own connections was sent again."""
    if not any(_is_wait(case, one) for one in case.waits):
        return
    connections = Connections(case.evidence, case.window, case.family)
    if not connections.retransmits:
        return

    def is_mine(one: Segment) -> bool:
        return bool(_inside(connections, case, one))

    paths = PathWaits(case)
    claims = paths.claim(is_mine)
    if not claims:
        return
    segments = [one for one in paths.all() if is_mine(one)]
    events = {id(event): event for one in segments for event in _inside(connections, case, one)}.values()
    lost = sum(claims.values())
    ends = Counter(connections.peer_of(event) for event in events)
    peer, _ = ends.most_common(1)[0]
    worst = max(segments, key=lambda one: one.duration_ns)
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
                seen_ns=sum(one.duration_ns for one in segments),
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
        waits_for=workers_of(case, segments),
    )


def _is_wait(case: Case, one: Segment) -> bool:
    """A worker's; a process that waits for the network itself has no work requested."""
    is_worker = one.pid in case.family and one.pid != case.process.pid
    return is_worker and one.state == "sleep" and one.waker_kind == "network"


def _inside(connections: Connections, case: Case, one: Segment) -> list[HostEvent]:
    return connections.retransmitted(one.pid, one.begin_ns, one.end_ns) if _is_wait(case, one) else []


def _line(case: Case, worst: Segment) -> CodeLine | None:
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
    find=find,
)
