"""Rows about processes: who they are, which container and rank they belong to, how they ended."""

from __future__ import annotations

from collections import deque

from ingero.attach.kernel_side import MAX_PROCESSES
from ingero.capture.gpus import GpuRows
from ingero.capture.identity import CgroupRows
from ingero.capture.rows import Sink
from ingero.capture.targets import Target
from ingero.discover.cgroups import read_cgroup, read_mounts
from ingero.discover.containers import slurm_job_of
from ingero.discover.processes import is_alive, read_environ, read_process
from ingero.discover.ranks import rank_of
from ingero.identity import identity_text
from ingero.store import tables
from ingero.store.tables import Value

_ENDED_KEPT = 2 * MAX_PROCESSES  # an ended process is written again only while it holds its slot


class ProcessRows:
    """Writes processes, with their control groups and GPUs."""

    def __init__(self, sink: Sink, cgroups: CgroupRows, gpus: GpuRows) -> None:
        self._sink, self._cgroups, self._gpus = sink, cgroups, gpus
        self._mounts = read_mounts()
        self._facts: dict[int, dict[str, Value]] = {}
        self._ended: deque[int] = deque()

    def write(self, target: Target, seen_ns: int) -> None:
        """Writes the row of a target as it is known now, for the last time when it has ended."""
        if not target.is_described and target.exit_ns is None:
            self._describe(target)
        facts = self._facts.get(target.number, {})
        if target.exit_ns is not None:
            self._facts.pop(target.number, None)
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
            self._facts.pop(self._ended.popleft(), None)

    def forked(self, child: Target, parent: Target) -> None:
        """A child has its parent's environment and group until it execs, even if it ends before it can be looked at."""
        facts = self._facts.get(parent.number)
        if facts is not None and child.number not in self._facts:
            self._facts[child.number] = facts | {"parent_pid": parent.pid}
            child.identity = parent.identity

    def executed(self, target: Target) -> None:
        """Another program may have been given another rank."""
        unknown = ("cmdline", "rank", "local_rank", "world_size", "slurm_job")
        kept = {name: value for name, value in self._facts.get(target.number, {}).items() if name not in unknown}
        self._facts[target.number] = kept

    def _describe(self, target: Target) -> None:
        # One that is ending has lost its group, then its memory, before it is gone; the command line is read after the
        # environment, so that a process which has the one and not the other was given none.
        environ = read_environ(target.pid) or {}
        process = read_process(target.pid)
        cgroup = read_cgroup(target.pid, self._mounts)
        if process is None or cgroup is None or not (environ or process.cmdline) or not is_alive(process.id):
            return
        target.name, target.is_described = process.name, True
        rank = rank_of(environ)
        number, place = self._cgroups.target(target.pid, cgroup, environ)
        self._gpus.target(target.number, environ, is_containerized=place.is_containerized)
        target.identity = identity_text(
            rank.rank if rank else None, rank.world_size if rank else None, place.container_id
        )
        facts: dict[str, Value] = {
            "cmdline": " ".join(process.cmdline),
            "uid": process.uid,
            "parent_pid": process.ppid,
            "cgroup_id": number,
            "slurm_job": slurm_job_of(environ) or place.job or "",
        }
        if rank:
            facts |= {"rank": rank.rank, "local_rank": rank.local_rank, "world_size": rank.world_size}
        self._facts[target.number] = facts
