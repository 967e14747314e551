"""Drops the privileges of a process and limits its memory and CPU time, before it reads untrusted data."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

NOBODY = 65534
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 1, 4, 15, 8, 38
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE = 2, 19, 21, 40  # linux/capability.h
ALL = frozenset(range(64))

_libc = ctypes.CDLL(None, use_errno=True)


def to_open() -> frozenset[int]:
    """The capabilities that opening the files of any process takes (map_files: CAP_SYS_ADMIN before Linux 5.9)."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    of_maps = CAP_CHECKPOINT_RESTORE if last >= CAP_CHECKPOINT_RESTORE else CAP_SYS_ADMIN
    return frozenset((CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, of_maps))


def end_with_parent(name: str) -> None:
    """Makes this process end with its parent. name: as `ps` shows it, 15 bytes."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    be_named(name)


def be_named(name: str) -> None:
    """Sets the name that `ps` shows for this process, 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process, so that it can wait for them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become(uid: int, gid: int) -> None:
    """Becomes another user for good, without supplementary groups.

    Raises:
        OSError: this process may not, as root without CAP_SETUID and CAP_SETGID may not.
    """
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def keep(capabilities: Collection[int], *, is_nobody: bool = True) -> None:
    """Drops all capabilities but these, for good, and a CPU priority above the usual one.

    is_nobody: becomes user nobody if it keeps none. A process that has fewer to begin with, or may not change who it
    is, keeps what is left of them.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        with suppress(OSError):  # no right: where a filter forbids the call, the process works all the same
            os.setpriority(os.PRIO_PROCESS, 0, 0)
    if is_nobody and not capabilities and os.geteuid() == 0:
        _become_nobody()
    before = _capabilities()
    kept = sum(1 << one for one in capabilities) & before
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    if _libc.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")
    if before:  # without capabilities it is just its user, whose own processes may read it; its files stay its own
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _become_nobody() -> None:
    try:
        become(NOBODY, NOBODY)
    except OSError:  # without CAP_SETUID; it loses its capabilities all the same
        return


def _capabilities() -> int:
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if _libc.capget(header, data) != 0:
        return 0
    return int(data[1]) | int(data[4]) << 32


def limit_room(*, memory_bytes: int, file_bytes: int, open_files: int, cpu_s: int) -> None:
    """Limits memory, file size, open files and CPU time of this process for good; forbids forks.

    memory_bytes: of addresses, beside those in use. file_bytes: of each file that it writes. cpu_s: of CPU time.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    addresses = pages * os.sysconf("SC_PAGESIZE") + memory_bytes
    for limit, value in (
        (resource.RLIMIT_AS, addresses),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_NPROC, 0),
    ):
        _, hard = resource.getrlimit(limit)
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (most, most))


def limit_cpu_to(seconds: float) -> None:
    """Limits the CPU time from now on; beyond it the kernel ends this process. Whole seconds, rounded up."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
