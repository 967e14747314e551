"""Processes: which there are, with their threads, and who belongs together by descent, container, job and rank."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from ingero.diagnose.evidence.recorded import Recorded
from ingero.identity import job_text, short_id
from ingero.store.records import Communicator, Container, Process, Thread


class ProcessEvidence(Recorded):
    """Questions about processes."""

    @cached_property
    def processes(self) -> dict[int, Process]:
        """Every process seen, by its number."""
        return {one.process: one for one in self.read_processes()}

    def read_processes(self) -> list[Process]:
        """The processes that there is something to say of."""
        return self.reader.processes(only_traced=False)

    @cached_property
    def containers(self) -> dict[int, Container]:
        """The control groups, by id."""
        return (
            {one.cgroup_id: one for one in self.reader.containers()} if self.reader.is_recorded("raw_cgroups") else {}
        )

    def container_of(self, cgroup_id: int | None) -> str:
        """The name people know: the pod, or the short id of the container; "" on the host."""
        one = self.containers.get(cgroup_id or 0)
        if one is None or not one.container_id:
            return ""
        return f"pod {one.pod}" if one.pod else f"container {short_id(one.container_id)}"

    def rank_name(self, number: int) -> str:
        """The rank of a process, its pid where that is not known, or another that it trains with says the same."""
        process = self.processes[number]
        is_own = all(self.processes[one].rank != process.rank for one in self.peers(number) if one in self.processes)
        return f"rank {process.rank}" if process.rank is not None and is_own else f"pid {process.pid}"

    def job_of(self, pid: int, cgroup_id: int | None = None) -> str:
        """The scheduler's job of a process as texts name it, by itself or by its group; "" where none is known."""
        process = self.process_at(pid)
        if process is not None and process.job:
            return job_text(process.scheduler, process.job, process.job_step)
        group = self.containers.get(cgroup_id or (process.cgroup_id if process else None) or 0)
        return job_text(group.scheduler, group.job, group.job_step) if group else ""

    def process_at(self, pid: int) -> Process | None:
        """The process that had this pid last, if it was traced."""
        return self._by_pid.get(pid)

    @cached_property
    def _by_pid(self) -> dict[int, Process]:
        return {one.pid: one for one in sorted(self.processes.values(), key=lambda one: one.start_ns) if one.is_traced}

    @cached_property
    def children(self) -> dict[int, list[Process]]:
        """Traced processes by the number of their traced parent."""
        found: dict[int, list[Process]] = defaultdict(list)
        for one in self.processes.values():
            parent = self._by_pid.get(one.parent_pid or 0)
            if parent and one.is_traced and parent.process != one.process:
                found[parent.process].append(one)
        return found

    def family(self, process: int) -> set[int]:
        """Pids of a process, its traced descendants and, where it is one of several ranks' workers, not its parent."""
        pids: set[int] = set()
        todo = [process]
        while todo:
            number = todo.pop()
            children = [one for one in self.children.get(number, ()) if one.pid not in pids]
            pids |= {self.processes[number].pid, *(one.pid for one in children)}
            todo += [one.process for one in children]
        return pids

    @cached_property
    def communicators(self) -> list[Communicator]:
        """NCCL communicators of every traced rank."""
        return self.reader.communicators() if self.reader.is_recorded("raw_communicators") else []

    def peers(self, process: int) -> set[int]:
        """Numbers of the traced ranks that share a communicator with this one, itself left out.

        Where a communicator was made before tracing began it has no name that ranks share; then the ranks of one
        launcher that use communicators as old are its peers.
        """
        mine = [one for one in self.communicators if one.process == process]
        hashes = {one.comm_id_hash for one in mine if one.comm_id_hash is not None}
        found = {one.process for one in self.communicators if one.comm_id_hash in hashes}
        if any(one.comm_id_hash is None for one in mine):
            parent = self.processes[process].parent_pid
            nameless = {one.process for one in self.communicators if one.comm_id_hash is None}
            found |= {number for number in nameless if self.processes[number].parent_pid == parent}
        return found - {process}

    def job(self, process: int) -> set[int]:
        """Pids of a process, of the ranks that it shares a communicator with, and of the workers of them all."""
        return {pid for one in (process, *self.peers(process)) for pid in self.family(one)}

    @cached_property
    def thread_names(self) -> dict[int, str]:
        """The names of the threads of traced processes."""
        return {one.tid: one.name for one in self._every_thread}

    @cached_property
    def threads(self) -> dict[int, tuple[int, int]]:
        """(process, pid) of the threads of traced processes, by thread id."""
        pids = {number: one.pid for number, one in self.processes.items() if one.is_traced}
        return {one.tid: (one.process, pids[one.process]) for one in self._every_thread if one.process in pids}

    @cached_property
    def _every_thread(self) -> list[Thread]:
        return self.read_threads() if self.reader.is_recorded("raw_threads") else []

    def read_threads(self) -> list[Thread]:
        """The threads of those processes."""
        return self.reader.threads()
