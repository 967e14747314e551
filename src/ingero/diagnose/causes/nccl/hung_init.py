"""Ranks that wait for each other in ncclCommInitRank: which are inside, since when, and which have not come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingero.diagnose.causes.nccl.hung_ranks import FIRST_HANGS_NS
from ingero.diagnose.evidence.evidence import Evidence
from ingero.ops import COMMUNICATOR_CALLS, CommunicatorRole, Source
from ingero.store.records import InFlight, Process

MEETS_NS = 8_000_000_000  # ranks of a host start within seconds of each other, and then meet in one
_MEETINGS = frozenset({CommunicatorRole.INIT_RANK, CommunicatorRole.INIT_SCALABLE})
_LIVE_NS = 2_500_000_000  # an open call is seen each second while it is open


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The ranks of a job that are inside, by process; those of its processes that are not; the ranks nobody has seen.

    world_size: None where no environment says it: then nothing is known of who is missing.
    """

    inside: dict[int, InFlight]
    outside: tuple[Process, ...]
    unseen: tuple[int, ...]
    world_size: int | None

    @property
    def since_ns(self) -> int:
        """When the last of them went in."""
        return max(call.since_ns for call in self.inside.values())

    @property
    def seen_ns(self) -> int:
        """When they were last seen inside."""
        return max(call.time_ns for call in self.inside.values())

    @property
    def is_complete(self) -> bool:
        """Whether nobody is missing that is known of."""
        return not self.outside and not self.unseen


def hung_meetings(evidence: Evidence) -> Iterator[Meeting]:
    """Those that have lasted for longer than starting takes."""
    calls = [one for one in evidence.reader.in_flight(evidence.window) if _is_meeting(evidence, one)]
    done: set[int] = set()
    for call in calls:
        process = evidence.processes[call.process]
        if process.process in done:
            continue
        job = _job(evidence, process)
        numbers = {one.process for one in job}
        inside = {
            one.process: one for one in calls if one.process in numbers and abs(one.time_ns - call.time_ns) <= _LIVE_NS
        }
        done |= set(inside)
        meeting = _meeting(process, job, inside)
        patience_ns = FIRST_HANGS_NS if meeting.is_complete else MEETS_NS
        if meeting.seen_ns - meeting.since_ns >= patience_ns:
            yield meeting


def _meeting(process: Process, job: Sequence[Process], inside: dict[int, InFlight]) -> Meeting:
    known = {one.rank for one in job}
    ranks = range(process.world_size) if process.world_size is not None and process.rank is not None else ()
    return Meeting(
        inside=inside,
        outside=tuple(one for one in job if one.process not in inside),
        unseen=tuple(rank for rank in ranks if rank not in known),
        world_size=process.world_size,
    )


def _is_meeting(evidence: Evidence, call: InFlight) -> bool:
    if call.source != int(Source.NCCL) or COMMUNICATOR_CALLS.get(call.name) not in _MEETINGS:
        return False
    if call.process not in evidence.processes:
        return False
    stops = evidence.stopped_seconds(call.process)
    return not any(stop.begin_ns < call.time_ns and stop.end_ns > call.since_ns for stop in stops)


def _job(evidence: Evidence, process: Process) -> list[Process]:
    """The traced ranks of its job, one process each: those that its launcher started, else all of that size."""
    if process.rank is None:
        return [process]
    same = [
        one
        for one in evidence.processes.values()
        if one.is_traced and one.rank is not None and one.world_size == process.world_size
    ]
    siblings = [one for one in same if one.parent_pid == process.parent_pid]
    chosen = siblings if len(siblings) > 1 else same
    by_rank: dict[int | None, Process] = {}
    for one in sorted(chosen, key=lambda one: (one.exit_ns is None, -one.start_ns)):
        by_rank[one.rank] = one  # a living one before one that has ended, a rank before the workers that it forked
    by_rank[process.rank] = process
    return [by_rank[rank] for rank in sorted(by_rank, key=lambda rank: -1 if rank is None else rank)]
