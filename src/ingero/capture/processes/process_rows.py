"""Rows about processes: who they are, which container, job and rank they belong to, how they ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from ingero.attach.kernel_side import MAX_PROCESSES
from ingero.capture.host.gpus import GpuRows
from ingero.capture.processes.cgroup_rows import CgroupRows
from ingero.capture.processes.traced_processes import TracedProcess
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
_REFRESHED_SHARE = 10  # a tenth of them each second: some move to another cgroup, some name their rank late
_ANCESTORS = 16  # read for the environment that a title has wiped

_RANK = ("rank", "local_rank", "world_size", "rank_source")
_JOB = ("slurm_job", "scheduler", "job", "job_step")


class ProcessRows:
    """Writes rows of processes, with their cgroups and GPUs."""

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
        self._claimed_ranks: dict[int, Rank | None] = {}  # by launcher or title
        self._members: dict[int, tuple[Membership, ...]] = {}
        self._parents: dict[int, int] = {}
        self._ended: deque[int] = deque()
        self._turn = 0

    def write(self, traced_process: TracedProcess, seen_ns: int) -> None:
        """Writes the row of a traced process as it is known now, for the last time when it has ended."""
        if not traced_process.is_described and traced_process.exit_ns is None:
            self._describe(traced_process)
        facts = self._facts.get(traced_process.number, {})
        row = tables.PROCESSES.rows(
            1,
            process=traced_process.number,
            session=self._sink.session,
            pid=traced_process.pid,
            start_ns=traced_process.start_ns,
            **{**facts, "name": traced_process.name},
            first_seen_ns=traced_process.start_ns,
            last_seen_ns=seen_ns,
            exit_ns=traced_process.exit_ns,
            exit_code=traced_process.exit_code,
        )
        self._sink.append(tables.PROCESSES, row)
        if traced_process.exit_ns is not None:
            self._forget_one_ended(traced_process.number)

    def _forget_one_ended(self, number: int) -> None:
        """Forgets the oldest ended process beyond a limit; until then it may still be written once more."""
        self._ended.append(number)
        if len(self._ended) > _ENDED_KEPT:
            gone = self._ended.popleft()
            self._gpus.forget(gone)
            self._withheld.discard(gone)
            for kept in (self._facts, self._claimed_ranks, self._members, self._parents):
                kept.pop(gone, None)

    def on_fork(self, child: TracedProcess, parent: TracedProcess) -> None:
        """Copies the parent's facts to a child: until it execs, it has its parent's environment and cgroup."""
        facts = self._facts.get(parent.number)
        if facts is not None and child.number not in self._facts:
            self._facts[child.number] = facts | {"parent_pid": parent.pid}
            self._claimed_ranks[child.number] = self._claimed_ranks.get(parent.number)
            self._parents[child.number] = parent.number
            self._gpus.on_fork(child.number, parent.number)
            child.identity = parent.identity

    def on_exec(self, traced_process: TracedProcess) -> None:
        """Marks a process for a new description after exec. Until then it keeps its facts."""
        self._facts[traced_process.number] = {
            k: v for k, v in self._facts.get(traced_process.number, {}).items() if k != "cmdline"
        }
        self._members.pop(traced_process.number, None)

    def note_communicators(
        self, members: Mapping[int, Sequence[Membership]], traced_processes: Mapping[int, TracedProcess], seen_ns: int
    ) -> None:
        """Takes the communicators of processes (by number): their rank there overrides what any launcher says."""
        for number, found in members.items():  # one that has ended tells the rank still
            self._members[number] = tuple(dict.fromkeys((*self._members.get(number, ()), *found)))
        children = [child for child, parent in self._parents.items() if parent in members and child not in members]
        for number in dict.fromkeys((*members, *self._ambiguous(members), *children)):
            if (traced_process := traced_processes.get(number)) and traced_process.exit_ns is None:
                self._rank(traced_process, seen_ns)

    def look_again(self, traced_processes: Sequence[TracedProcess], seen_ns: int) -> None:
        """Checks a tenth of the traced processes for changes: of cgroup, and of a title that names a rank."""
        self._turn += 1
        for traced_process in traced_processes:
            if (
                traced_process.number % _REFRESHED_SHARE == self._turn % _REFRESHED_SHARE
                and traced_process.exit_ns is None
            ):
                self._describe_again(traced_process, seen_ns)

    def _describe_again(self, traced_process: TracedProcess, seen_ns: int) -> None:
        facts = self._facts.get(traced_process.number)
        if traced_process.number in self._withheld:  # it may answer by now
            self.write(traced_process, seen_ns)
        if facts is None or not traced_process.is_described:
            return
        cgroup = read_cgroup(traced_process.pid, self._mounts)
        if (
            cgroup is not None
            and cgroup.path != traced_process.cgroup_path
            and is_alive(traced_process.id, stat_of=self._memory.stat)
        ):
            traced_process.is_described = False  # it is another container or job now
            self.write(traced_process, seen_ns)
        elif self._claimed_ranks.get(traced_process.number) is None:
            words = command_line(self._memory.launched_with(traced_process.pid))
            process = read_process(traced_process.pid, stat_of=self._memory.stat)
            self._claimed_ranks[traced_process.number] = (
                rank_in_title(words) if process and process.id == traced_process.id else None
            )
            self._rank(traced_process, seen_ns)

    def _rank(self, traced_process: TracedProcess, seen_ns: int) -> None:
        """Determines the rank of a process again, and writes its row if that has changed."""
        facts = self._facts.get(traced_process.number)
        if facts is None:
            return
        before = {name: facts.get(name) for name in _RANK}
        now = self._rank_facts(traced_process.number)
        if now == {name: value for name, value in before.items() if value is not None}:
            return
        for name in _RANK:
            facts.pop(name, None)
        facts |= now
        self._identify(traced_process)
        self.write(traced_process, seen_ns)

    def _rank_facts(self, number: int) -> dict[str, Value]:
        claimed_rank, members = self._claimed_ranks.get(number), self._members.get(number)
        if members is None and claimed_rank is not None and (parent := self._parents.get(number)) is not None:
            # a worker of a rank, which says what its parent says, and has no communicator
            members = self._members.get(parent) if self._claimed_ranks.get(parent) == claimed_rank else None
        found = rank_among(members or (), claimed_rank)
        if found is not None and found.launcher != "communicator":
            others = self._claimants(number, found)
            if others:
                return {"rank_source": f"ambiguous: {1 + len(others)} processes say rank {found.rank}"}
        if found is None:
            return {}
        facts = {"rank": found.rank, "local_rank": found.local_rank, "world_size": found.world_size}
        return {name: value for name, value in facts.items() if value is not None} | {"rank_source": found.launcher}

    def _claimants(self, number: int, rank: Rank) -> list[int]:
        """Other processes with communicators, of the same parent and job, that claim the same rank.

        A data loader's worker says so, too, and is none: it uses none.
        """
        if number not in self._members:
            return []
        key = self._family(number)
        return [
            other
            for other in self._members
            if other != number
            and self._claimed_ranks.get(other) == rank
            and self._family(other) == key
            and self._is_alive(other)
            and (found := rank_among(self._members[other], self._claimed_ranks.get(other)))
            and found.launcher != "communicator"
        ]

    def _ambiguous(self, members: Mapping[int, object]) -> Iterator[int]:
        """Processes that had a rank to themselves until one of these claimed the same."""
        ranks = {(self._family(one), rank) for one in members if (rank := self._claimed_ranks.get(one)) is not None}
        for other in self._members:
            if other not in members and (self._family(other), self._claimed_ranks.get(other)) in ranks:
                yield other

    def _family(self, number: int) -> tuple[Value, ...]:
        facts = self._facts.get(number, {})
        return tuple(facts.get(name) for name in ("parent_pid", "cgroup_id", *_JOB))

    def _is_alive(self, number: int) -> bool:
        return number in self._facts and number not in self._ended

    def _describe(self, traced_process: TracedProcess) -> None:
        # One that is ending has lost its group, then its memory, before it is gone; the command line is read after the
        # environment, so that a process which has the one and not the other was given none.
        found = self._memory.launched_with(traced_process.pid)
        (environ, state), words = environment(found), command_line(found)
        (self._withheld.add if found.is_withheld else self._withheld.discard)(traced_process.number)
        process = read_process(traced_process.pid, stat_of=self._memory.stat)
        cgroup = read_cgroup(traced_process.pid, self._mounts)
        is_known = bool(environ or words or found.is_withheld)
        if process is None or cgroup is None or not is_known or not is_alive(process.id, stat_of=self._memory.stat):
            return
        traced_process.name, traced_process.is_described, traced_process.cgroup_path = (
            process.name,
            not found.is_withheld,
            cgroup.path,
        )
        known = self._facts.get(traced_process.number, {})
        is_whole = state in (Environ.WHOLE, Environ.EMPTY)
        around = environ if is_whole else self._environ_around(process) | environ
        number, place = self._cgroups.write_group_of(traced_process.pid, cgroup, around)
        facts: dict[str, Value] = {
            "cmdline": known.get("cmdline", "") if found.is_withheld else " ".join(words),
            "uid": process.uid,
            "parent_pid": process.ppid,
            "cgroup_id": number,
        }
        title = rank_in_title(words)
        if is_whole:
            self._claimed_ranks[traced_process.number] = rank_of(environ) or title
            facts |= _job_facts(job_of(place, cgroup.path, environ, traced_process.pid, self._files))
        else:  # what was known before a title covered it is not replaced by less
            self._claimed_ranks[traced_process.number] = (
                self._claimed_ranks.get(traced_process.number) or rank_of(environ) or title
            )
            before = {name: known[name] for name in _JOB if known.get(name)}
            facts |= before or _job_facts(job_of(place, cgroup.path, around, traced_process.pid, self._files))
        self._facts[traced_process.number] = facts
        facts |= self._rank_facts(traced_process.number)
        if is_whole or not self._gpus.is_known(traced_process.number):
            self._gpus.note_process(
                traced_process.number,
                traced_process.pid,
                environ if is_whole or "CUDA_VISIBLE_DEVICES" in environ else {},
                is_containerized=place.is_containerized,
            )
        traced_process.container = place.container_id
        self._identify(traced_process)

    def _environ_around(self, process: Process) -> dict[str, str]:
        """The environment of the nearest ancestor with a complete one: job and pod are those of the child."""
        for _ in range(_ANCESTORS):
            parent = read_process(process.ppid, stat_of=self._memory.stat) if process.ppid > 1 else None
            if parent is None:
                return {}
            environ, state = environment(self._memory.launched_with(parent.pid))
            if state is Environ.WHOLE:
                return environ
            process = parent
        return {}

    def _identify(self, traced_process: TracedProcess) -> None:
        facts = self._facts.get(traced_process.number, {})
        rank, size = facts.get("rank"), facts.get("world_size")
        traced_process.rank = rank if isinstance(rank, int) else None
        traced_process.world_size = size if isinstance(size, int) else None
        scheduler, job, step = (str(facts.get(name) or "") for name in ("scheduler", "job", "job_step"))
        traced_process.identity = identity_text(
            traced_process.rank, traced_process.world_size, traced_process.container, (scheduler, job, step)
        )


def _job_facts(job: Job | None) -> dict[str, Value]:
    if job is None:
        return {}
    facts: dict[str, Value] = {"scheduler": job.scheduler, "job": job.id, "job_step": job.step or ""}
    return facts | ({"slurm_job": job.id} if job.scheduler == "slurm" else {})
