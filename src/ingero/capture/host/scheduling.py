"""Rows about scheduling settings of traced processes, of their calling threads, and of culprits of CPU time."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingero.capture.processes.traced_processes import TracedProcess
from ingero.capture.records.rows import Sink
from ingero.capture.sums.culprits import CulpritTime
from ingero.discover.cgroups import (
    Cgroup,
    CgroupMounts,
    CpuShare,
    IoLimit,
    parse_cgroup,
    read_cpu_share,
    read_io_limits,
    read_mounts,
)
from ingero.discover.processes import PROC
from ingero.discover.scheduling import SchedulingPolicy, read_scheduling
from ingero.store.writing import tables
from ingero.store.writing.tables import Row

TAKES_NS = 10_000_000  # culprits with less time in a second, over all traced processes, are ignored
REPEAT_NS = 600_000_000_000  # unchanged rows are written again, so that the size limit never takes the last one
_SHORTEST_NS = 900_000_000
_GROUPS_A_SECOND = 8  # finding a process's group and its limits takes 0.1 ms; with more processes each has its turn
_THREADS_A_SECOND = 256


@dataclass(frozen=True, slots=True)
class _CgroupLimits:
    """CPU share and I/O limits of a cgroup."""

    share: CpuShare
    io_limits: tuple[IoLimit, ...]


@dataclass(frozen=True, slots=True)
class _SchedulingFacts:
    process: int
    policy: SchedulingPolicy
    group: _CgroupLimits | None


@dataclass(slots=True)
class _WrittenFacts:
    facts: _SchedulingFacts
    written_ns: int


class SchedulingRows:
    """Writes `raw_scheduling`: a row for a thread when it is first seen, at each change, and every ten minutes."""

    def __init__(self, sink: Sink, *, mounts: CgroupMounts | None = None, proc: Path = PROC) -> None:
        self._sink, self._proc = sink, proc
        self._mounts = mounts or read_mounts()
        self._known: dict[tuple[int, int], _WrittenFacts] = {}
        self._groups: dict[int, bytes] = {}
        self._shares: dict[bytes, _CgroupLimits | None] = {}
        self._hits: dict[int, int] = {}
        self._written_ns = self._looks = 0

    def write(
        self,
        time_ns: int,
        traced_processes: Iterable[TracedProcess],
        threads: np.ndarray[Any, Any],
        culprit_times: Iterable[CulpritTime],
    ) -> None:
        """Writes all settings, once a second at most. threads: `struct thread_dump`; culprit_times: last second's."""
        if time_ns - self._written_ns < _SHORTEST_NS:
            return
        self._written_ns = time_ns
        callers = self._callers(threads)
        living = [traced_process for traced_process in traced_processes if traced_process.exit_ns is None]
        wanted = dict(self._wanted(living, callers, _cpu_users(culprit_times)))
        self._read_groups({pid for pid, _ in wanted})
        rows: list[Row] = []
        for (pid, tid), process in wanted.items():
            rows += self._row_if_news(time_ns, process, pid, tid)
        self._sink.append(tables.SCHEDULING, rows)
        self._known = {key: known for key, known in self._known.items() if key in wanted or _exists(*key)}

    def _wanted(
        self, traced_processes: Iterable[TracedProcess], callers: list[tuple[int, int]], cpu_users: list[int]
    ) -> Iterator[tuple[tuple[int, int], int]]:
        """(pid, tid) -> number of the process, 0 for culprits that are not traced."""
        yield from (((pid, pid), 0) for pid in cpu_users)
        numbers = {traced_process.pid: traced_process.number for traced_process in traced_processes}
        yield from (((pid, pid), number) for pid, number in numbers.items())
        yield from (((pid, tid), numbers[pid]) for pid, tid in callers if pid in numbers)

    def _callers(self, threads: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
        """Threads that have entered a traced call since the last reading, those with the most calls first."""
        tids, hits = threads["tid"].tolist(), threads["hits"].tolist()
        grown = np.asarray([now - self._hits.get(tid, 0) for tid, now in zip(tids, hits, strict=True)], np.int64)
        self._hits = dict(zip(tids, hits, strict=True))
        most = np.argsort(-grown)[:_THREADS_A_SECOND]
        pids = threads["pid"].tolist()
        return [(pids[at], tids[at]) for at in most.tolist() if grown[at] > 0]

    def _read_groups(self, pids: set[int]) -> None:
        """Reads the cgroup of each process and its limits: of new processes, and of those whose turn it is."""
        self._looks += 1
        rounds = 1 + (len(pids) - 1) // _GROUPS_A_SECOND
        groups = {pid: self._groups[pid] for pid in pids if pid in self._groups}
        looked_at: dict[bytes, _CgroupLimits | None] = {}
        for place, pid in enumerate(sorted(pids)):
            if pid not in groups or place % rounds == self._looks % rounds:
                text = groups[pid] = self._group_text(pid)
                if text not in looked_at:
                    looked_at[text] = self._read_share(text)
        self._groups = groups
        self._shares = {text: self._shares.get(text) for text in groups.values()} | looked_at

    def _group_text(self, pid: int) -> bytes:
        try:
            return (self._proc / str(pid) / "cgroup").read_bytes()
        except OSError:  # it has ended
            return b""

    def _read_share(self, text: bytes) -> _CgroupLimits | None:
        """The limits of a cgroup. text: of a /proc/PID/cgroup; empty if the process has ended."""
        paths = parse_cgroup(os.fsdecode(text))
        if not paths:
            return None
        group = Cgroup(id=None, path="", paths=paths)
        return _CgroupLimits(read_cpu_share(group, self._mounts), read_io_limits(group, self._mounts))

    def _row_if_news(self, time_ns: int, process: int, pid: int, tid: int) -> Sequence[Row]:
        policy = read_scheduling(tid)
        if policy is None:
            return []
        facts = _SchedulingFacts(process, policy, self._shares[self._groups[pid]])
        known = self._known.get((pid, tid))
        if known and known.facts == facts and time_ns - known.written_ns < REPEAT_NS:
            return []
        self._known[pid, tid] = _WrittenFacts(facts, time_ns)
        group = facts.group or _CgroupLimits(CpuShare(weight=None, quota_us=None, period_us=None), ())
        return tables.SCHEDULING.rows(
            1,
            session=self._sink.session,
            time_ns=time_ns,
            process=process,
            pid=pid,
            tid=tid,
            nice=policy.nice,
            policy=policy.policy,
            rt_priority=policy.rt_priority,
            cpus_allowed=policy.cpus_allowed,
            cpu_weight=group.share.weight,
            quota_us=group.share.quota_us,
            period_us=group.share.period_us,
            io_limits=json.dumps([(one.device, one.limit, one.path) for one in group.io_limits]),
        )


def _cpu_users(culprit_times: Iterable[CulpritTime]) -> list[int]:
    taken: dict[int, int] = defaultdict(int)
    for culprit_time in culprit_times:
        if culprit_time.culprit_pid > 0:
            taken[culprit_time.culprit_pid] += culprit_time.ns
    return [pid for pid, ns in taken.items() if ns > TAKES_NS]


def _exists(pid: int, tid: int) -> bool:
    return os.path.exists(f"/proc/{pid}/task/{tid}")  # noqa: PTH110  # a tenth of what a Path costs
