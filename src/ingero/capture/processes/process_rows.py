"""Rows about processes: who they are, which container, job and rank they belong to, how they ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from ingero.attach.kernel_side import MAX_PROCESSES
from ingero.capture.host.gpus import GpuRows
from ingero.capture.processes.cgroup_rows import CgroupRows
from ingero.capture.processes.traced_processes import Target
from ingero.capture.records.rows import Sink
from ingero.discover.cgroups import read_cgroup, read_mounts
from ingero.discover.jobs import Job, job_of
from ingero.discover.memory_files import Environ, MemoryFiles, command_line, environment
from ingero.discover.processes import Process, is_alive, read_process
from ingero.discover.ranks import Membership, Rank, rank_among, rank_in_title, rank_of
from ingero.discover.rooted import RootFiles
from ingero.identity import identity_text
from ingero.store.writing import tables
from ingero.store.writing.tables import Value

_ENDED_KEPT = 2 * MAX_PROCESSES  # an ended process is written again only while it holds its slot
_LOOKED_AGAIN_SHARE = 10  # of the targets a tenth each second: some move to another group, some say later who they are
_ANCESTORS = 16  # looked at for the environment that a title has wiped

_RANK = ("rank", "local_rank", "world_size", "rank_source")
_JOB = ("slurm_job", "scheduler", "job", "job_step")


class ProcessRows:
    """Writes processes, with their control groups and GPUs."""

    def __init__(
        self,
        sink: Sink,
        cgroups: CgroupRows,
        gpus: GpuRows,
        files: RootFiles | None = None,
        memory: MemoryFiles | None = None,
    ) -> None:
        self._sink, self._cgroups, self._gpus, self._files = sink, cgroups, gpus, files
        self._memory = memory or MemoryFiles()
        self._withheld: set[int] = set()  # those whose memory did not answer
        self._mounts = read_mounts()
        self._facts: dict[int, dict[str, Value]] = {}
        self._told: dict[int, Rank | None] = {}  # by launcher or title
        self._members: dict[int, tuple[Membership, ...]] = {}
        self._parents: dict[int, int] = {}
        self._ended: deque[int] = deque()
        self._turn = 0

    def write(self, target: Target, seen_ns: int) -> None:
        """Writes the row of a target as it is known now, for the last time when it has ended."""
        if not target.is_described and target.exit_ns is None:
            self._describe(target)
        facts = self._facts.get(target.number, {})
        row = tables.PROCESSES.rows(
            1,
            process=target.number,
            session=self._sink.session,
            pid=target.pid,
            start_ns=target.start_ns,
            **{**facts, "name": target.name},
            first_seen_ns=target.start_ns,
            last_seen_ns=seen_ns,
            exit_ns=target.exit_ns,
            exit_code=target.exit_code,
        )
        self._sink.append(tables.PROCESSES, row)
        if target.exit_ns is not None:
            self._forget_one_ended(target.number)

    def _forget_one_ended(self, number: int) -> None:
        """Facts of an ended process are kept while it may still be written once more."""
        self._ended.append(number)
        if len(self._ended) > _ENDED_KEPT:
            gone = self._ended.popleft()
            self._gpus.forget(gone)
            self._withheld.discard(gone)
            for kept in (self._facts, self._told, self._members, self._parents):
                kept.pop(gone, None)

    def forked(self, child: Target, parent: Target) -> None:
        """A child has its parent's environment and group until it execs, even if it ends before it can be looked at."""
        facts = self._facts.get(parent.number)
        if facts is not None and child.number not in self._facts:
            self._facts[child.number] = facts | {"parent_pid": parent.pid}
            self._told[child.number] = self._told.get(parent.number)
            self._parents[child.number] = parent.number
            self._gpus.forked(child.number, parent.number)
            child.identity = parent.identity

    def executed(self, target: Target) -> None:
        """Another program is looked at anew. Until then, and where it cannot be, it is what its process was."""
        self._facts[target.number] = {k: v for k, v in self._facts.get(target.number, {}).items() if k != "cmdline"}
        self._members.pop(target.number, None)

    def joined(self, members: Mapping[int, Sequence[Membership]], targets: Mapping[int, Target], seen_ns: int) -> None:
        """Takes the communicators of processes (by number): their rank there counts before what any launcher says."""
        for number, found in members.items():  # one that has ended tells the rank still
            self._members[number] = tuple(dict.fromkeys((*self._members.get(number, ()), *found)))
        children = [child for child, parent in self._parents.items() if parent in members and child not in members]
        for number in dict.fromkeys((*members, *self._ambiguous(members), *children)):
            if (target := targets.get(number)) and target.exit_ns is None:
                self._rank(target, seen_ns)

    def look_again(self, targets: Sequence[Target], seen_ns: int) -> None:
        """Looks at a part of the targets, for what may have changed: their group, and a title that tells a rank."""
        self._turn += 1
        for target in targets:
            if target.number % _LOOKED_AGAIN_SHARE == self._turn % _LOOKED_AGAIN_SHARE and target.exit_ns is None:
                self._look_again(target, seen_ns)

    def _look_again(self, target: Target, seen_ns: int) -> None:
        facts = self._facts.get(target.number)
        if target.number in self._withheld:  # it may answer by now
            self.write(target, seen_ns)
        if facts is None or not target.is_described:
            return
        cgroup = read_cgroup(target.pid, self._mounts)
        if cgroup is not None and cgroup.path != target.cgroup_path and is_alive(target.id, stat_of=self._memory.stat):
            target.is_described = False  # it is another container or job now
            self.write(target, seen_ns)
        elif self._told.get(target.number) is None:
            words = command_line(self._memory.launched_with(target.pid))
            process = read_process(target.pid, stat_of=self._memory.stat)
            self._told[target.number] = rank_in_title(words) if process and process.id == target.id else None
            self._rank(target, seen_ns)

    def _rank(self, target: Target, seen_ns: int) -> None:
        """Decides again which rank a process has, and writes its row where that is another."""
        facts = self._facts.get(target.number)
        if facts is None:
            return
        before = {name: facts.get(name) for name in _RANK}
        now = self._rank_facts(target.number)
        if now == {name: value for name, value in before.items() if value is not None}:
            return
        for name in _RANK:
            facts.pop(name, None)
        facts |= now
        self._identify(target)
        self.write(target, seen_ns)

    def _rank_facts(self, number: int) -> dict[str, Value]:
        told, members = self._told.get(number), self._members.get(number)
        if members is None and told is not None and (parent := self._parents.get(number)) is not None:
            # a worker of a rank, which says what its parent says, and has no communicator
            members = self._members.get(parent) if self._told.get(parent) == told else None
        found = rank_among(members or (), told)
        if found is not None and found.launcher != "communicator":
            others = self._claimants(number, found)
            if others:
                return {"rank_source": f"ambiguous: {1 + len(others)} processes say rank {found.rank}"}
        if found is None:
            return {}
        facts = {"rank": found.rank, "local_rank": found.local_rank, "world_size": found.world_size}
        return {name: value for name, value in facts.items() if value is not None} | {"rank_source": found.launcher}

    def _claimants(self, number: int, rank: Rank) -> list[int]:
        """Other processes that use communicators, of the same parent and job, and say that they are the same rank.

        A data loader's worker says so, too, and is none: it uses none.
        """
        if number not in self._members:
            return []
        key = self._family(number)
        return [
            other
            for other in self._members
            if other != number
            and self._told.get(other) == rank
            and self._family(other) == key
            and self._is_alive(other)
            and (found := rank_among(self._members[other], self._told.get(other)))
            and found.launcher != "communicator"
        ]

    def _ambiguous(self, members: Mapping[int, object]) -> Iterator[int]:
        """Processes whose rank was their own until one of these said the same."""
        ranks = {(self._family(one), rank) for one in members if (rank := self._told.get(one)) is not None}
        for other in self._members:
            if other not in members and (self._family(other), self._told.get(other)) in ranks:
                yield other

    def _family(self, number: int) -> tuple[Value, ...]:
        facts = self._facts.get(number, {})
        return tuple(facts.get(name) for name in ("parent_pid", "cgroup_id", *_JOB))

    def _is_alive(self, number: int) -> bool:
        return number in self._facts and number not in self._ended

    def _describe(self, target: Target) -> None:
        # One that is ending has lost its group, then its memory, before it is gone; the command line is read after the
        # environment, so that a process which has the one and not the other was given none.
        found = self._memory.launched_with(target.pid)
        (environ, state), words = environment(found), command_line(found)
        (self._withheld.add if found.is_withheld else self._withheld.discard)(target.number)
        process = read_process(target.pid, stat_of=self._memory.stat)
        cgroup = read_cgroup(target.pid, self._mounts)
        is_known = bool(environ or words or found.is_withheld)
        if process is None or cgroup is None or not is_known or not is_alive(process.id, stat_of=self._memory.stat):
            return
        target.name, target.is_described, target.cgroup_path = process.name, not found.is_withheld, cgroup.path
        known = self._facts.get(target.number, {})
        is_whole = state in (Environ.WHOLE, Environ.EMPTY)
        around = environ if is_whole else self._environ_around(process) | environ
        number, place = self._cgroups.target(target.pid, cgroup, around)
        facts: dict[str, Value] = {
            "cmdline": known.get("cmdline", "") if found.is_withheld else " ".join(words),
            "uid": process.uid,
            "parent_pid": process.ppid,
            "cgroup_id": number,
        }
        title = rank_in_title(words)
        if is_whole:
            self._told[target.number] = rank_of(environ) or title
            facts |= _job_facts(job_of(place, cgroup.path, environ, target.pid, self._files))
        else:  # what was known before a title covered it is not replaced by less
            self._told[target.number] = self._told.get(target.number) or rank_of(environ) or title
            before = {name: known[name] for name in _JOB if known.get(name)}
            facts |= before or _job_facts(job_of(place, cgroup.path, around, target.pid, self._files))
        self._facts[target.number] = facts
        facts |= self._rank_facts(target.number)
        if is_whole or not self._gpus.is_known(target.number):
            self._gpus.target(
                target.number,
                target.pid,
                environ if is_whole or "CUDA_VISIBLE_DEVICES" in environ else {},
                is_containerized=place.is_containerized,
            )
        target.container = place.container_id
        self._identify(target)

    def _environ_around(self, process: Process) -> dict[str, str]:
        """The environment of the nearest ancestor that still shows one whole: job and pod are those of the child."""
        for _ in range(_ANCESTORS):
            parent = read_process(process.ppid, stat_of=self._memory.stat) if process.ppid > 1 else None
            if parent is None:
                return {}
            environ, state = environment(self._memory.launched_with(parent.pid))
            if state is Environ.WHOLE:
                return environ
            process = parent
        return {}

    def _identify(self, target: Target) -> None:
        facts = self._facts.get(target.number, {})
        rank, size = facts.get("rank"), facts.get("world_size")
        target.rank = rank if isinstance(rank, int) else None
        target.world_size = size if isinstance(size, int) else None
        scheduler, job, step = (str(facts.get(name) or "") for name in ("scheduler", "job", "job_step"))
        target.identity = identity_text(target.rank, target.world_size, target.container, (scheduler, job, step))


def _job_facts(job: Job | None) -> dict[str, Value]:
    if job is None:
        return {}
    facts: dict[str, Value] = {"scheduler": job.scheduler, "job": job.id, "job_step": job.step or ""}
    return facts | ({"slurm_job": job.id} if job.scheduler == "slurm" else {})
