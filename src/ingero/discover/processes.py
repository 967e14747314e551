"""The processes of this machine, as /proc shows them: who they are, since when, and whether they still live.

A process may vanish between any two reads, so every reader here answers None (or leaves the process out) instead of
raising. pid is the kernel's tgid, tid its pid; both are numbers of the agent's own PID namespace.
"""

from __future__ import annotations

import enum
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingero.discover import kernel_clock
from ingero.foreign_text import decoded

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_NS_PER_TICK = 1_000_000_000 // TICKS_PER_SECOND
_MOST_BYTES = 1 << 20  # of an environment, which may have 6 MB: what launchers set comes first
_MOST_CMDLINE_BYTES = 64 << 10  # of which people are shown the beginning
_PF_KTHREAD, _PF_EXITING = 0x00200000, 0x00000004  # include/linux/sched.h


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """What names one process for ever: a pid is reused, a pid with its start time is not.

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
    """One process. `uid` is the real one; `cmdline` is empty for kernel threads and zombies."""

    id: ProcessId
    name: str
    cmdline: tuple[str, ...]
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
class _Stat:
    name: str
    state: str
    ppid: int
    flags: int
    threads: int
    start_ticks: int


def list_pids(proc: Path = PROC) -> list[int]:
    """Every pid that /proc lists now, in ascending order."""
    return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """One process, or None when it is gone (or hidden from this user by hidepid)."""
    stat = _read_stat(proc / str(pid) / "stat")
    status = _read_bytes(proc / str(pid) / "status")
    if stat is None or status is None:
        return None
    return Process(
        id=ProcessId(pid, stat.start_ticks),
        name=stat.name,
        cmdline=_read_cmdline(proc / str(pid) / "cmdline"),
        uid=_real_uid(status),
        ppid=stat.ppid,
        state=stat.state,
        threads=stat.threads,
        is_kernel_thread=bool(stat.flags & _PF_KTHREAD),
    )


def read_process_id(pid: int, proc: Path = PROC) -> ProcessId | None:
    """The identity of the process that has this pid now, or None."""
    stat = _read_stat(proc / str(pid) / "stat")
    return None if stat is None else ProcessId(pid, stat.start_ticks)


def real_uid(pid: int, proc: Path = PROC) -> int | None:
    """The real user id of a process, or None when it is gone."""
    status = _read_bytes(proc / str(pid) / "status")
    return None if status is None else _real_uid(status)


def is_alive(process: ProcessId, proc: Path = PROC) -> bool:
    """Whether this very process still runs code.

    False for a zombie, and for one that is on its way there: what /proc says of its memory and its groups is no longer
    true. A process whose first thread has ended while others run shows the same, but counts more than one thread: it
    is alive.
    """
    stat = _read_stat(proc / str(process.pid) / "stat")
    if stat is None or stat.start_ticks != process.start_ticks:
        return False
    return stat.threads > 1 or not (stat.state in "ZX" or stat.flags & _PF_EXITING)


def parent_of(pid: int, proc: Path = PROC) -> int | None:
    """The pid of a process's parent, or None when it is gone."""
    stat = _read_stat(proc / str(pid) / "stat")
    return None if stat is None else stat.ppid


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


class Environ(enum.Enum):
    """How much of the environment that a process was started with can still be read."""

    WHOLE = "whole"
    WIPED = "wiped"  # a title lies over its beginning: what is not in it may have been
    EMPTY = "empty"
    UNREADABLE = "unreadable"  # not ours to read, or the process is gone


def environment(pid: int, proc: Path = PROC) -> tuple[dict[str, str], Environ]:
    """As `read_environ`, and how much that is. Of one that was wiped only what lies behind the title."""
    raw = _read_bytes(proc / str(pid) / "environ")
    if raw is None:
        return {}, Environ.UNREADABLE
    if not raw:
        return {}, Environ.EMPTY
    first, *rest = raw.split(b"\0")
    line = _read_bytes(proc / str(pid) / "cmdline", most=_MOST_CMDLINE_BYTES) or b""
    # /proc shows a title to its end, which lies in the environment where it is longer than the arguments were
    is_title = b"=" not in first or line.split(b"\0")[0].endswith(first)
    return (_pairs(rest), Environ.WIPED) if is_title else (_pairs([first, *rest]), Environ.WHOLE)


def _pairs(entries: Iterable[bytes]) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in entries if b"=" in entry)
    return {decoded(key): decoded(value, most=_MOST_BYTES) for key, _, value in pairs}


def read_environ(pid: int, proc: Path = PROC) -> dict[str, str] | None:
    """The environment the process was started with; later setenv() calls are not seen.

    None when it is gone or may not be read (CAP_SYS_PTRACE for another user's process).
    """
    raw = _read_bytes(proc / str(pid) / "environ")
    return None if raw is None else _pairs(raw.split(b"\0"))


def read_thread_name(tid: int, proc: Path = PROC) -> str:
    """The name of a thread; "" when it is gone. Its program chose it: any 15 bytes."""
    return decoded((_read_bytes(proc / str(tid) / "comm") or b"").removesuffix(b"\n"))


def _read_stat(path: Path) -> _Stat | None:
    raw = _read_bytes(path)
    if raw is None or b")" not in raw:
        return None
    # The name stands in brackets and may hold brackets and spaces itself: the last one closes it.
    head, _, tail = raw.rpartition(b")")
    fields = tail.split()
    return _Stat(
        name=decoded(head.partition(b"(")[2]),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        flags=int(fields[6]),
        threads=int(fields[17]),
        start_ticks=kernel_clock.start_ticks(int(fields[19])),
    )


def _read_cmdline(path: Path) -> tuple[str, ...]:
    raw = _read_bytes(path, most=_MOST_CMDLINE_BYTES) or b""
    return tuple(decoded(word) for word in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def _real_uid(status: bytes) -> int:
    line = next((line for line in status.splitlines() if line.startswith(b"Uid:")), b"Uid: -1")
    return int(line.split()[1])


def _read_bytes(path: Path, *, most: int = _MOST_BYTES) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError:  # gone, or not ours to read: the callers say None
        return None
