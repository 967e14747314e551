"""Ranks that wait for each other in ncclCommInitRank: which are inside, since when, and which are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ingero.diagnose.causes.nccl.hung_ranks import FIRST_HANGS_NS
from ingero.diagnose.evidence.evidence import Evidence
from ingero.ops import COMMUNICATOR_CALLS, CommunicatorRole, Source
from ingero.store.records import InFlight, Process

MISSING_RANK_HANGS_NS = 8_000_000_000  # ranks of a host start, and enter the call, within seconds of each other
_INIT_ROLES = frozenset({CommunicatorRole.INIT_RANK, CommunicatorRole.INIT_SCALABLE})
_MAX_SIGHT_DISTANCE_NS = 2_500_000_000  # an in-flight call is recorded every second


@dataclass(frozen=True, slots=True, kw_only=True)
class HungInit:
    """Ranks of a job inside ncclCommInitRank. inside: by process; outside: traced, but not in the call; unseen: ranks.

    world_size: None where no environment variable has it; then missing ranks are unknown.
    """

    inside: dict[int, InFlight]
    outside: tuple[Process, ...]
    unseen: tuple[int, ...]
    world_size: int | None

    @property
    def since_ns(self) -> int:
        """When the last rank entered."""
        return max(call.since_ns for call in self.inside.values())

    @property
    def seen_ns(self) -> int:
        """When the ranks were last seen inside."""
        return max(call.time_ns for call in self.inside.values())

    @property
    def is_complete(self) -> bool:
        """Whether no known rank is missing."""
        return not self.outside and not self.unseen


def hung_inits(evidence: Evidence) -> Iterator[HungInit]:
    """Initializations that have lasted longer than ranks take to start."""
    calls = [call for call in evidence.reader.in_flight(evidence.window) if _is_init_call(evidence, call)]
    done: set[int] = set()
    for call in calls:
        process = evidence.processes[call.process]
        if process.process in done:
            continue
        job = _ranks_of_job(evidence, process)
        numbers = {member.process for member in job}
        inside = {
            other.process: other
            for other in calls
            if other.process in numbers and abs(other.time_ns - call.time_ns) <= _MAX_SIGHT_DISTANCE_NS
        }
        done |= set(inside)
        hung_init = _as_hung_init(process, job, inside)
        patience_ns = FIRST_HANGS_NS if hung_init.is_complete else MISSING_RANK_HANGS_NS
        if hung_init.seen_ns - hung_init.since_ns >= patience_ns:
            yield hung_init


def _as_hung_init(process: Process, job: Sequence[Process], inside: dict[int, InFlight]) -> HungInit:
    known = {member.rank for member in job}
    ranks = range(process.world_size) if process.world_size is not None and process.rank is not None else ()
    return HungInit(
        inside=inside,
        outside=tuple(member for member in job if member.process not in inside),
        unseen=tuple(rank for rank in ranks if rank not in known),
        world_size=process.world_size,
    )


def _is_init_call(evidence: Evidence, call: InFlight) -> bool:
    if call.source != int(Source.NCCL) or COMMUNICATOR_CALLS.get(call.name) not in _INIT_ROLES:
        return False
    if call.process not in evidence.processes:
        return False
    stops = evidence.stopped_seconds(call.process)
    return not any(stop.begin_ns < call.time_ns and stop.end_ns > call.since_ns for stop in stops)


def _ranks_of_job(evidence: Evidence, process: Process) -> list[Process]:
    """The traced ranks of a process's job, one process each: siblings by launcher, otherwise all of its world size."""
    if process.rank is None:
        return [process]
    same_size = [
        member
        for member in evidence.processes.values()
        if member.is_traced and member.rank is not None and member.world_size == process.world_size
    ]
    siblings = [member for member in same_size if member.parent_pid == process.parent_pid]
    chosen = siblings if len(siblings) > 1 else same_size
    by_rank: dict[int | None, Process] = {}
    for member in sorted(chosen, key=lambda member: (member.exit_ns is None, -member.start_ns)):
        by_rank[member.rank] = member  # running before exited processes, a rank before the workers that it forked
    by_rank[process.rank] = process
    return [by_rank[rank] for rank in sorted(by_rank, key=lambda rank: -1 if rank is None else rank)]
