"""Ranks that hang in communication: which are inside, since when, and which have not come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingero.diagnose.evidence.evidence import Evidence
from ingero.diagnose.steps.pacing import waited_ns
from ingero.ops import OPS, Kind, Source
from ingero.store.records import Collective, InFlight, Window

HANGS_NS = 3_000_000_000
FIRST_HANGS_NS = 30_000_000_000  # with nothing before it: a first wait compiles, loads and makes contexts
TIMES_LONGEST = 3  # as long as the longest sync before it: steps of large models take seconds, each time
_LAST = 64
_LIVE_NS = 2_500_000_000  # an open call is seen each second while it is open
_WAITS = {(int(op.source), op.code) for op in OPS if op.kind & (Kind.SYNC | Kind.COPY)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HungRanks:
    """One communicator of which ranks are inside a wait that does not end.

    inside: their open calls by process. missing: peers that are not inside. last: the last recorded collective of each.
    """

    inside: dict[int, InFlight]
    missing: tuple[int, ...]
    last: dict[int, Collective]

    @property
    def since_ns(self) -> int:
        """When the last of them went in: from then on nobody got ahead."""
        return max(call.since_ns for call in self.inside.values())

    @property
    def seen_ns(self) -> int:
        """When they were last seen inside."""
        return max(call.time_ns for call in self.inside.values())


def hung_ranks(evidence: Evidence) -> Iterator[HungRanks]:
    """Groups of peers of which at least one has been inside a wait for seconds when it was last seen.

    The others are inside where they were in a wait then, however long they have waited before.
    """
    waits = [one for one in evidence.reader.in_flight(evidence.window) if _is_wait(one)]
    done: set[InFlight] = set()
    for call in waits:
        if call in done or not (_is_hanging(call) and is_longest_yet(evidence, call) and _is_inside(evidence, call)):
            continue
        peers = evidence.peers(call.process) if call.process in evidence.processes else set()
        if not peers:
            continue
        group = peers | {call.process}
        theirs = [one for one in waits if one.process in group]
        done |= {one for one in theirs if one.since_ns <= call.time_ns and one.time_ns >= call.since_ns}
        open_then = {one.process: one for one in reversed(theirs) if _is_open_at(one, call.time_ns)}
        inside = {one: open_then[one] for one in sorted(open_then) if _is_inside(evidence, open_then[one])}
        if not inside:
            continue
        last = {one: latest for one in sorted(group) if (latest := _last(evidence, one, evidence.window))}
        yield HungRanks(inside=inside, missing=tuple(sorted(group - inside.keys())), last=last)


def disagreement(evidence: Evidence, ranks: HungRanks) -> tuple[Collective, Collective] | None:
    """Two ranks whose collectives of one communicator and place differ; None where all agree."""
    seen: dict[tuple[int | None, int], Collective] = {}
    window = Window(begin_ns=evidence.window.begin_ns, end_ns=ranks.seen_ns)
    for process in sorted(ranks.last):
        for one in evidence.reader.last_collectives(window, process=process, limit=_LAST):
            if one.sequence is None or one.comm_id_hash is None:
                continue
            other = seen.setdefault((one.comm_id_hash, one.sequence), one)
            if _what(other) != _what(one):
                return other, one
    return None


def is_longest_yet(evidence: Evidence, call: InFlight) -> bool:
    """Whether a call has been open for far longer than any sync of its process's main stream before it."""
    open_ns = call.time_ns - call.since_ns
    gpu_stream = evidence.gpu_streams.get(call.process)
    if gpu_stream is None or not (gpu_stream["sync_end_ns"] <= call.since_ns).any():
        return open_ns >= FIRST_HANGS_NS
    before = gpu_stream[gpu_stream["sync_end_ns"] <= call.since_ns]
    return open_ns >= TIMES_LONGEST * int(waited_ns(before).max())


def _what(one: Collective) -> tuple[object, ...]:
    return one.op, one.datatype, one.reduce_op, one.root, one.bytes


def _is_wait(call: InFlight) -> bool:
    return (call.source, call.op) in _WAITS or call.source == int(Source.NCCL)


def _is_hanging(call: InFlight) -> bool:
    return call.time_ns - call.since_ns >= HANGS_NS


def _is_inside(evidence: Evidence, call: InFlight) -> bool:
    """Not so while it is stopped: then its call is open, but it is the one that does not come."""
    stops = evidence.stopped_seconds(call.process)
    return not any(stop.begin_ns < call.time_ns and stop.end_ns > call.since_ns for stop in stops)


def communicating(evidence: Evidence, process: int, begin_ns: int, end_ns: int) -> bool:
    """Whether a process hung in communication at that time: rules about ranks say why."""
    return any(
        process in ranks.inside and ranks.since_ns < end_ns and ranks.seen_ns > begin_ns
        for ranks in hung_ranks(evidence)
    )


def _is_open_at(call: InFlight, time_ns: int) -> bool:
    return call.since_ns <= time_ns <= call.time_ns + _LIVE_NS


def _last(evidence: Evidence, process: int, window: Window) -> Collective | None:
    return next(iter(evidence.reader.last_collectives(window, process=process, limit=1)), None)
