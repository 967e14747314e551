"""Rows about processes: who they are, which container and rank they belong to, how they ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ingero.capture.rows import Sink
from ingero.capture.targets import Target
from ingero.discover.cgroups import Cgroup, cpu_stat_file, read_cgroup, read_mounts
from ingero.discover.containers import placement_of
from ingero.discover.processes import read_environ, read_process
from ingero.discover.ranks import rank_of
from ingero.store import tables
from ingero.store.tables import Value


class ProcessRows:
    """Writes processes and their control groups."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._mounts = read_mounts()
        self._cgroups: set[int] = set()
        self._facts: dict[int, dict[str, Value]] = {}
        self.cpu_stats: dict[Path, int] = {}  # the CPU controller's statistics of targets' groups -> the group's number

    def write(self, target: Target, seen_ns: int) -> None:
        """Writes the row of a target as it is known now; what it was while it lived is kept."""
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

    def _describe(self, target: Target) -> None:
        process = read_process(target.pid)
        if process is None:
            return
        target.name, target.is_described = process.name, True
        rank = rank_of(read_environ(target.pid) or {})
        cgroup = read_cgroup(target.pid, self._mounts)
        facts: dict[str, Value] = {
            "cmdline": " ".join(process.cmdline),
            "uid": process.uid,
            "parent_pid": process.ppid,
            "cgroup_id": self._write_cgroup(cgroup) if cgroup and cgroup.id else None,
        }
        if rank:
            facts |= {"rank": rank.rank, "local_rank": rank.local_rank, "world_size": rank.world_size}
        self._facts[target.number] = facts

    def _write_cgroup(self, cgroup: Cgroup) -> int:
        kernel_id = cgroup.id or 0
        number = int(self._sink.cgroup_keys(np.asarray([kernel_id], np.uint64))[0])
        if kernel_id not in self._cgroups:
            self._cgroups.add(kernel_id)
            statistics = cpu_stat_file(cgroup, self._mounts)
            if statistics:
                self.cpu_stats[statistics] = number
            place = placement_of(cgroup.path)
            row = tables.CGROUPS.rows(
                1,
                cgroup_id=number,
                kernel_cgroup_id=kernel_id,
                node=self._sink.node,
                container_id=place.container_id or "",
                cgroup_path=cgroup.path,
                orchestrator=place.orchestrator or "",
            )
            self._sink.append(tables.CGROUPS, row)
        return number
