"""The processes of this host from /proc: identity, start, and whether they still live.

A process may vanish between any two reads, so every reader here answers None (or leaves the process out) instead of
raising. Some kernels answer for `stat` only when an exec is over, which its program may hold up: where that matters it
is read by somebody else (`stat_of`). pid is the kernel's tgid, tid its pid; both are numbers of the agent's own PID
namespace.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingero.discover import kernel_clock
from ingero.foreign_text import decoded

PROC = Path("/proc")
StatOf = Callable[[int], bytes | None]
"""Reads /proc/PID/stat of a pid; None where that is not to be had."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_NS_PER_TICK = 1_000_000_000 // TICKS_PER_SECOND
_MAX_BYTES = 64 << 10  # only the list of groups in `status` can be longer, and nothing behind it is read
_PF_KTHREAD, _PF_EXITING = 0x00200000, 0x00000004  # include/linux/sched.h


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A unique identity of a process: a pid is reused, a pid with its start time is not.

    start_ticks: clock ticks since boot, as the initial time namespace shows them (field 22 of /proc/PID/stat); it
    survives execve.
    """

    pid: int
    start_ticks: int

    @classmethod
    def from_boottime(cls, pid: int, start_boottime_ns: int) -> ProcessId:
        """The same identity from the kernel's `task->group_leader->start_boottime` in ns."""
        return cls(pid, start_boottime_ns // _NS_PER_TICK)

    def start_unix_ns(self, boot_unix_ns: int) -> int:
        """When the process started, in unix ns, to one clock tick (10 ms).

        boot_unix_ns: CLOCK_REALTIME minus CLOCK_BOOTTIME, the kernel's.
        """
        return boot_unix_ns + self.start_ticks * _NS_PER_TICK


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process, without what is read from its memory (memory_files.py). `uid` is the real one."""

    id: ProcessId
    name: str
    uid: int
    ppid: int
    state: str
    threads: int
    is_kernel_thread: bool

    @property
    def pid(self) -> int:
        """The kernel's tgid."""
        return self.id.pid


@dataclass(frozen=True, slots=True)
class _ProcessStat:
    name: str
    state: str
    ppid: int
    flags: int
    threads: int
    start_ticks: int


def list_pids(proc: Path = PROC) -> list[int]:
    """The pids that /proc lists now, ascending."""
    return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())


def read_process(pid: int, proc: Path = PROC, stat_of: StatOf | None = None) -> Process | None:
    """Reads a process; None if it is gone (or hidden from this user by hidepid)."""
    stat = _read_stat(pid, proc, stat_of)
    status = _read_bytes(proc / str(pid) / "status")
    if stat is None or status is None:
        return None
    return Process(
        id=ProcessId(pid, stat.start_ticks),
        name=stat.name,
        uid=_real_uid(status),
        ppid=stat.ppid,
        state=stat.state,
        threads=stat.threads,
        is_kernel_thread=bool(stat.flags & _PF_KTHREAD),
    )


def read_process_id(pid: int, proc: Path = PROC, stat_of: StatOf | None = None) -> ProcessId | None:
    """The identity of the process that has this pid now, or None."""
    stat = _read_stat(pid, proc, stat_of)
    return None if stat is None else ProcessId(pid, stat.start_ticks)


def real_uid(pid: int, proc: Path = PROC) -> int | None:
    """The real user id of a process, or None when it is gone."""
    status = _read_bytes(proc / str(pid) / "status")
    return None if status is None else _real_uid(status)


def is_alive(process: ProcessId, proc: Path = PROC, stat_of: StatOf | None = None) -> bool:
    """Whether this very process still runs.

    False for a zombie, and for one that is on its way there: what /proc says of its memory and its groups is no longer
    true. A process whose first thread has ended while others run shows the same, but counts more than one thread: it
    is alive.
    """
    stat = _read_stat(process.pid, proc, stat_of)
    if stat is None or stat.start_ticks != process.start_ticks:
        return False
    return stat.threads > 1 or not (stat.state in "ZX" or stat.flags & _PF_EXITING)


def parent_of(pid: int, proc: Path = PROC) -> int | None:
    """The pid of a process's parent, or None when it is gone."""
    status = _read_bytes(proc / str(pid) / "status")
    return None if status is None else _number(status, b"PPid:")


def parents(proc: Path = PROC) -> dict[int, int]:
    """The parent of every process, by pid; nothing else is read of them."""
    found = ((pid, parent_of(pid, proc)) for pid in list_pids(proc))
    return {pid: parent for pid, parent in found if parent is not None}


def descendants(roots: Iterable[int], parents: Mapping[int, int]) -> tuple[int, ...]:
    """The pids of all children, grandchildren and so on of `roots`, without the roots, in ascending order.

    parents: by pid, of every process.

    A child whose parent has ended belongs to init (or a subreaper) and is not found.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for pid, parent in parents.items():
        children[parent].append(pid)
    start = set(roots)
    found: set[int] = set()
    pending = list(start)
    while pending:
        for pid in children[pending.pop()]:
            if pid not in found:
                found.add(pid)
                pending.append(pid)
    return tuple(sorted(found - start))


def read_thread_name(tid: int, proc: Path = PROC) -> str:
    """The name of a thread; "" when it is gone. Its program chose it: any 15 bytes."""
    return decoded((_read_bytes(proc / str(tid) / "comm") or b"").removesuffix(b"\n"))


def _read_stat(pid: int, proc: Path, stat_of: StatOf | None) -> _ProcessStat | None:
    raw = stat_of(pid) if stat_of else _read_bytes(proc / str(pid) / "stat")
    if raw is None or b")" not in raw:
        return None
    # The name stands in brackets and may hold brackets and spaces itself: the last one closes it.
    head, _, tail = raw.rpartition(b")")
    fields = tail.split()
    return _ProcessStat(
        name=decoded(head.partition(b"(")[2]),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        flags=int(fields[6]),
        threads=int(fields[17]),
        start_ticks=kernel_clock.start_ticks(int(fields[19])),
    )


def _real_uid(status: bytes) -> int:
    return _number(status, b"Uid:")


def _number(status: bytes, name: bytes) -> int:
    """The first number of a line; -1 where there is none."""
    line = next((line for line in status.splitlines() if line.startswith(name)), name + b" -1")
    return int(line.split()[1])


def _read_bytes(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError:  # gone, or not ours to read: the callers say None
        return None
