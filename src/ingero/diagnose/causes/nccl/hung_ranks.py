"""Ranks that hang in communication: which are inside a wait, since when, and which have not arrived."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.steps.pacing import waited_ns
from ingero.ops import OPS, Kind, Source
from ingero.store.records import Collective, InFlight, Window

HANGS_NS = 3_000_000_000  # in a wait, when last seen
FIRST_HANGS_NS = 30_000_000_000  # for a first wait, which compiles and loads code and creates contexts
TIMES_LONGEST = 3  # times the longest earlier sync: each step of a large model takes seconds
_MAX_COLLECTIVES = 64  # latest recorded ones of each rank
_MAX_SIGHT_DISTANCE_NS = 2_500_000_000  # an in-flight call is recorded every second
_WAITING_OPS = {(int(op.source), op.code) for op in OPS if op.kind & (Kind.SYNC | Kind.COPY)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HungRanks:
    """One communicator with ranks inside a wait that does not end.

    inside: their in-flight calls by process. missing: peers that are not inside. last: the last recorded collective of
    each.
    """

    inside: dict[int, InFlight]
    missing: tuple[int, ...]
    last: dict[int, Collective]

    @property
    def since_ns(self) -> int:
        """When the last rank entered: from then on no rank made progress."""
        return max(call.since_ns for call in self.inside.values())

    @property
    def seen_ns(self) -> int:
        """When the ranks were last seen inside."""
        return max(call.time_ns for call in self.inside.values())


def hung_ranks(evidence: Evidence) -> Iterator[HungRanks]:
    """Groups of peers, at least one of which had been inside a wait for seconds when last seen.

    The others count as inside if they were in a wait at that time, however long they had waited.
    """
    waits = [call for call in evidence.reader.in_flight(evidence.window) if _is_wait(call)]
    done: set[InFlight] = set()
    for call in waits:
        if call in done or not (_is_hanging(call) and is_longest_yet(evidence, call) and _is_inside(evidence, call)):
            continue
        peers = evidence.peers(call.process) if call.process in evidence.processes else set()
        if not peers:
            continue
        group = peers | {call.process}
        group_calls = [other for other in waits if other.process in group]
        done |= {other for other in group_calls if other.since_ns <= call.time_ns and other.time_ns >= call.since_ns}
        open_then = {other.process: other for other in reversed(group_calls) if _is_open_at(other, call.time_ns)}
        inside = {number: open_then[number] for number in sorted(open_then) if _is_inside(evidence, open_then[number])}
        if not inside:
            continue
        last = {number: latest for number in sorted(group) if (latest := _last(evidence, number, evidence.window))}
        yield HungRanks(inside=inside, missing=tuple(sorted(group - inside.keys())), last=last)


def disagreement(evidence: Evidence, ranks: HungRanks) -> tuple[Collective, Collective] | None:
    """Two ranks whose collectives at the same position of one communicator differ; None where all agree."""
    seen: dict[tuple[int | None, int], Collective] = {}
    window = Window(begin_ns=evidence.window.begin_ns, end_ns=ranks.seen_ns)
    latest = latest_collectives(evidence, ranks)
    for process in sorted({*ranks.inside, *ranks.missing}):
        recorded = evidence.reader.last_collectives(window, process=process, limit=_MAX_COLLECTIVES)
        for collective in (*recorded, *(collective for collective in latest if collective.process == process)):
            if collective.sequence is None or collective.comm_id_hash is None:
                continue
            other = seen.setdefault((collective.comm_id_hash, collective.sequence), collective)
            if _signature(other) != _signature(collective):
                return other, collective
    return None


def latest_collectives(evidence: Evidence, ranks: HungRanks) -> list[Collective]:
    """The latest collective of each communicator of these ranks, recorded or not; of none that went on since."""
    group = {*ranks.inside, *ranks.missing}
    return [
        collective
        for collective in evidence.reader.latest_collectives()
        if collective.process in group and collective.timestamp <= ranks.seen_ns
    ]


def other_order(evidence: Evidence, ranks: HungRanks) -> tuple[Collective, Collective] | None:
    """The latest collectives of two ranks inside that have called two communicators in opposite orders, else None.

    One thread of each rank made both calls: threads have no order. Either both ranks have called both communicators
    equally often, and their latest calls in opposite orders; or each waits in a collective that the other one has not
    called.
    """
    latest: dict[int, dict[int, Collective]] = {}
    for collective in latest_collectives(evidence, ranks):
        if collective.process in ranks.inside and collective.comm_id_hash is not None and collective.sequence:
            latest.setdefault(collective.process, {})[collective.comm_id_hash] = collective
    for first, second in combinations(sorted(latest), 2):
        for here, there in combinations(sorted(latest[first].keys() & latest[second].keys()), 2):
            pairs = [(latest[rank][here], latest[rank][there]) for rank in (first, second)]
            if _are_opposite(*pairs):
                last = [max(pair, key=lambda collective: collective.timestamp) for pair in pairs]
                return last[0], last[1]
    return None


def _are_opposite(mine: tuple[Collective, Collective], theirs: tuple[Collective, Collective]) -> bool:
    """Whether two ranks have called two communicators in opposite orders. Of each rank: its latest call in either."""
    if any(here.tid != there.tid for here, there in (mine, theirs)):
        return False
    ahead_here, ahead_there = ((a.sequence or 0) - (b.sequence or 0) for a, b in zip(mine, theirs, strict=True))
    if ahead_here or ahead_there:
        return ahead_here * ahead_there < 0
    my_order_ns, their_order_ns = (here.timestamp - there.timestamp for here, there in (mine, theirs))
    return my_order_ns * their_order_ns < 0


def is_longest_yet(evidence: Evidence, call: InFlight) -> bool:
    """Whether a call has been in flight far longer than any earlier sync of its process's main stream."""
    open_ns = call.time_ns - call.since_ns
    gpu_stream = evidence.gpu_streams.get(call.process)
    if gpu_stream is None or not (gpu_stream["sync_end_ns"] <= call.since_ns).any():
        return open_ns >= FIRST_HANGS_NS
    before = gpu_stream[gpu_stream["sync_end_ns"] <= call.since_ns]
    return open_ns >= TIMES_LONGEST * int(waited_ns(before).max())


def _signature(collective: Collective) -> tuple[object, ...]:
    return collective.op, collective.datatype, collective.reduce_op, collective.root, collective.bytes


def _is_wait(call: InFlight) -> bool:
    return (call.source, call.op) in _WAITING_OPS or call.source == int(Source.NCCL)


def _is_hanging(call: InFlight) -> bool:
    return call.time_ns - call.since_ns >= HANGS_NS


def _is_inside(evidence: Evidence, call: InFlight) -> bool:
    """Whether a rank is inside its call and not stopped: a stopped rank is the one that is missing."""
    stops = evidence.stopped_seconds(call.process)
    return not any(stop.begin_ns < call.time_ns and stop.end_ns > call.since_ns for stop in stops)


def hung_in_communication(evidence: Evidence, process: int, begin_ns: int, end_ns: int) -> bool:
    """Whether a process hung in communication at that time; the NCCL rules say why."""
    return any(
        process in ranks.inside and ranks.since_ns < end_ns and ranks.seen_ns > begin_ns
        for ranks in hung_ranks(evidence)
    )


def _is_open_at(call: InFlight, time_ns: int) -> bool:
    return call.since_ns <= time_ns <= call.time_ns + _MAX_SIGHT_DISTANCE_NS


def _last(evidence: Evidence, process: int, window: Window) -> Collective | None:
    return next(iter(evidence.reader.last_collectives(window, process=process, limit=1)), None)
