"""Rows that name cgroups: every cgroup that an event, a culprit or a traced process was in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ingero.capture.records.rows import Sink
from ingero.discover import kernel_clock
from ingero.discover.cgroups import Cgroup, cpu_stat_file, find_cgroups, members, read_mounts
from ingero.discover.containers import (
    Placement,
    Pod,
    owner_of,
    placement_among,
    placement_in,
    placement_of,
    pod_of,
    slurm_job_of,
)
from ingero.discover.jobs import job_in_path
from ingero.discover.memory_files import MemoryFiles, variables
from ingero.discover.rooted import RootFiles
from ingero.store.writing import tables

_WALK_SHARE = 20  # looking through the groups' folders takes at most a twentieth of the time
_MEMBERS_ASKED = 3  # processes of a group whose environment is read: the first may have ended or say nothing


class CgroupRows:
    """Writes `raw_cgroups`, one row for each cgroup as soon as it is first seen: it may be gone a second later."""

    def __init__(
        self,
        sink: Sink,
        clock: Callable[[], int] = kernel_clock.monotonic_ns,
        files: RootFiles | None = None,
        memory: MemoryFiles | None = None,
    ) -> None:
        self._sink, self._clock, self._files, self._memory = sink, clock, files, memory or MemoryFiles()
        self._mounts = read_mounts()
        self._known: set[int] = {0}
        self._named: dict[int, bool] = {}  # cgroups of traced processes that have a row -> whether it is complete
        self._sought: set[int] = set()
        self._walk_after_ns = 0
        self.cpu_stats: dict[Path, int] = {}  # `cpu.stat` of the traced processes' cgroups -> number of the cgroup

    def keys(self, kernel_ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The numbers of cgroups in the database; those seen for the first time get a row."""
        new = set(kernel_ids.tolist()) - self._known
        if new:
            self._known |= new
            self._sought |= new
            self.seek()
        return self._sink.cgroup_keys(kernel_ids)

    def tick(self) -> None:
        """Once a second: looks for deferred cgroups, and forgets those that are gone."""
        self.seek()
        for statistics in [path for path in self.cpu_stats if not path.exists()]:
            del self.cpu_stats[statistics]

    def seek(self, *, is_last: bool = False) -> None:
        """Looks for cgroups that have no row yet, now or at a later call if that takes too much time."""
        begin_ns = self._clock()
        if not self._sought or (begin_ns < self._walk_after_ns and not is_last):
            return
        sought, self._sought = self._sought, set()
        found = find_cgroups(sought, self._mounts)
        for kernel_id in sought:
            cgroup = found.get(kernel_id)
            if cgroup is None:  # gone already: the row keeps joins whole
                self._write(kernel_id, "", Placement(), Pod(name=None, namespace=None))
            else:
                self._describe(kernel_id, cgroup, members(cgroup, self._mounts)[:_MEMBERS_ASKED])
        end_ns = self._clock()
        self._walk_after_ns = end_ns + _WALK_SHARE * (end_ns - begin_ns)

    def write_group_of(self, pid: int, cgroup: Cgroup, environ: Mapping[str, str]) -> tuple[int | None, Placement]:
        """Writes the cgroup of a traced process by its own environment. The number is None if its id is not visible.

        Its other groups may tell of a container where that one is shared with processes in none.
        """
        own = _with_slurms_number(placement_in(placement_of(cgroup.path), environ), environ)
        every = placement_among((cgroup.path, *cgroup.paths.values()))
        place = _with_slurms_number(placement_in(every, environ), environ)
        if not cgroup.id:
            return None, place
        self._known.add(cgroup.id)
        self._sought.discard(cgroup.id)
        if not self._named.get(cgroup.id):
            self._name(pid, cgroup, cgroup.id, own, environ)
        return self._number(cgroup.id), place

    def _name(self, pid: int, cgroup: Cgroup, kernel_id: int, place: Placement, environ: Mapping[str, str]) -> None:
        """Writes a row, unless an earlier process of the cgroup gave one as complete."""
        statistics = cpu_stat_file(cgroup, self._mounts)
        if statistics:
            self.cpu_stats[statistics] = self._number(kernel_id)
        pod = self._pod(pid, environ, place)
        if kernel_id not in self._named or pod.name or place.job:
            self._named[kernel_id] = _is_complete(place, pod)
            self._write(kernel_id, cgroup.path, place, pod, owner_of(pod.name, environ))

    def _describe(self, kernel_id: int, cgroup: Cgroup, pids: list[int]) -> None:
        place, pod, owner = placement_of(cgroup.path), Pod(name=None, namespace=None), None
        if place.is_containerized or place.step is not None:
            for pid in pids:
                environ = variables(self._memory.launched_with(pid)) or {}
                place = _with_slurms_number(placement_in(place, environ), environ)
                pod = self._pod(pid, environ, place)
                owner = owner_of(pod.name, environ)
                if pod.name or place.job or place.orchestrator not in (None, "kubernetes", "slurm"):
                    break
        self._write(kernel_id, cgroup.path, place, pod, owner)

    def _pod(self, pid: int, environ: Mapping[str, str], place: Placement) -> Pod:
        if place.orchestrator != "kubernetes":
            return Pod(name=None, namespace=None)
        return pod_of(pid, environ, node_name=self._sink.node, files=self._files)

    def _write(self, kernel_id: int, path: str, place: Placement, pod: Pod, owner: str | None = None) -> None:
        job = job_in_path(place, path)
        row = tables.CGROUPS.rows(
            1,
            cgroup_id=self._number(kernel_id),
            kernel_cgroup_id=np.uint64(kernel_id).astype(np.int64),
            node=self._sink.node,
            container_id=place.container_id or "",
            cgroup_path=path,
            pod=pod.name or "",
            pod_uid=place.pod_uid or "",
            namespace=pod.namespace or "",
            orchestrator=place.orchestrator or "",
            runtime=place.runtime or "",
            slurm_job=place.job or "",
            scheduler=job.scheduler if job else "",
            job=job.id if job else "",
            job_step=job.step or "" if job else "",
            owner=owner or "",
            ecs_task=place.task or "",
            unit=place.unit or "",
        )
        self._sink.append(tables.CGROUPS, row)

    def _number(self, kernel_id: int) -> int:
        return int(self._sink.cgroup_keys(np.asarray([kernel_id], np.uint64))[0])


def _is_complete(place: Placement, pod: Pod) -> bool:
    """Whether no other process of the cgroup could add anything."""
    if place.orchestrator == "slurm" and place.job is None:
        return False
    return place.orchestrator != "kubernetes" or bool(pod.name)


def _with_slurms_number(place: Placement, environ: Mapping[str, str]) -> Placement:
    """The Slurm job number of a cgroup named by a SLUID, from the environment of a process in it."""
    if place.step is None or place.job is not None:
        return place
    return replace(place, job=slurm_job_of(environ))
