"""Evidence about processes and their threads, and about their relations by descent, container, job and rank."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from ingero.diagnose.evidence.recorded import Recorded
from ingero.identity import job_text, short_id
from ingero.store.records import Communicator, Container, Process, Thread


class ProcessEvidence(Recorded):
    """The part of `Evidence` about processes."""

    @cached_property
    def processes(self) -> dict[int, Process]:
        """Every process seen, by its number."""
        return {process.process: process for process in self.read_processes()}

    def read_processes(self) -> list[Process]:
        """The processes of the recording, from the reader."""
        return self.reader.processes(only_traced=False)

    @cached_property
    def containers(self) -> dict[int, Container]:
        """The cgroups, by id."""
        groups = self.reader.containers() if self.reader.is_recorded("raw_cgroups") else []
        return {group.cgroup_id: group for group in groups}

    def container_of(self, cgroup_id: int | None) -> str:
        """The container of a cgroup as texts name it: its pod, or its short id; "" on the host."""
        group = self.containers.get(cgroup_id or 0)
        if group is None or not group.container_id:
            return ""
        return f"pod {group.pod}" if group.pod else f"container {short_id(group.container_id)}"

    def rank_name(self, number: int) -> str:
        """The rank of a process as text, or its pid where the rank is not known or a peer has the same."""
        process = self.processes[number]
        peers = (self.processes[peer] for peer in self.peers(number) if peer in self.processes)
        is_own = all(peer.rank != process.rank for peer in peers)
        return f"rank {process.rank}" if process.rank is not None and is_own else f"pid {process.pid}"

    def job_of(self, pid: int, cgroup_id: int | None = None) -> str:
        """The batch job of a process as texts name it, by its environment or its cgroup; "" where none is known."""
        process = self.process_at(pid)
        if process is not None and process.job:
            return job_text(process.scheduler, process.job, process.job_step)
        group = self.containers.get(cgroup_id or (process.cgroup_id if process else None) or 0)
        return job_text(group.scheduler, group.job, group.job_step) if group else ""

    def process_at(self, pid: int) -> Process | None:
        """The traced process that had this pid last."""
        return self._by_pid.get(pid)

    @cached_property
    def _by_pid(self) -> dict[int, Process]:
        by_start = sorted(self.processes.values(), key=lambda process: process.start_ns)
        return {process.pid: process for process in by_start if process.is_traced}

    @cached_property
    def children(self) -> dict[int, list[Process]]:
        """Traced processes by the number of their traced parent."""
        found: dict[int, list[Process]] = defaultdict(list)
        for process in self.processes.values():
            parent = self._by_pid.get(process.parent_pid or 0)
            if parent and process.is_traced and parent.process != process.process:
                found[parent.process].append(process)
        return found

    def family(self, process: int) -> set[int]:
        """Pids of a process and of its traced descendants; its parent is not among them."""
        pids: set[int] = set()
        todo = [process]
        while todo:
            number = todo.pop()
            children = [child for child in self.children.get(number, ()) if child.pid not in pids]
            pids |= {self.processes[number].pid, *(child.pid for child in children)}
            todo += [child.process for child in children]
        return pids

    @cached_property
    def communicators(self) -> list[Communicator]:
        """NCCL communicators of every traced rank."""
        return self.reader.communicators() if self.reader.is_recorded("raw_communicators") else []

    def peers(self, process: int) -> set[int]:
        """Numbers of the other traced ranks that share a communicator with this process.

        A communicator made before tracing began has no id that ranks share; then its peers are the ranks of the same
        launcher whose communicators have no id either.
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
        """Pids of a process, of the ranks that it shares a communicator with, and of the workers of all these."""
        return {pid for number in (process, *self.peers(process)) for pid in self.family(number)}

    @cached_property
    def thread_names(self) -> dict[int, str]:
        """The names of the threads of traced processes, by thread id."""
        return {thread.tid: thread.name for thread in self._every_thread}

    @cached_property
    def threads(self) -> dict[int, tuple[int, int]]:
        """(process, pid) of the threads of traced processes, by thread id."""
        pids = {number: process.pid for number, process in self.processes.items() if process.is_traced}
        threads = (thread for thread in self._every_thread if thread.process in pids)
        return {thread.tid: (thread.process, pids[thread.process]) for thread in threads}

    @cached_property
    def _every_thread(self) -> list[Thread]:
        return self.read_threads() if self.reader.is_recorded("raw_threads") else []

    def read_threads(self) -> list[Thread]:
        """The threads of traced processes, from the reader."""
        return self.reader.threads()
