"""Detects processes that map a file of some name as code, by the kernel's mapping events.

A perf event that counts nothing is opened on every CPU only for its side records: one per executable mapping of a file
(PERF_RECORD_MMAP2, include/uapi/linux/perf_event.h). Nothing in any process is probed for it. The records are read when
the loop passes by; no process is woken for them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ingero.attach.libbpf import BpfError

_ONLINE_CPUS = Path("/sys/devices/system/cpu/online")
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SOFTWARE, _DUMMY = 1, 9  # PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQ")  # struct perf_event_attr up to config2
_MMAP, _EXCLUDE_KERNEL, _EXCLUDE_HV, _MMAP2 = 1 << 8, 1 << 5, 1 << 6, 1 << 23  # bits of struct perf_event_attr
_WATERMARK = 1 << 14  # a bit of it, too
_CLOSE_ON_EXEC = 8  # PERF_FLAG_FD_CLOEXEC
_RECORD_LOST, _RECORD_MMAP2 = 2, 10  # enum perf_event_type, linux/perf_event.h
_NAME_AT = 72  # in PERF_RECORD_MMAP2: header, pid, tid, addr, len, pgoff, device and inode, prot, flags
_PAGES = 64  # per CPU: 2,000 mappings between two readings
_HEAD_AT = 1024  # data_head and data_tail in struct perf_event_mmap_page

_libc = ctypes.CDLL(None, use_errno=True)


class MappedProcesses(NamedTuple):
    """The processes that have mapped a wanted file; not all of them if records were lost."""

    pids: set[int]
    are_all: bool


class MappingEvents:
    """Reads mapping events of all processes from its construction on.

    is_wanted: of a file name, whether its mappings are of interest.

    Raises:
        BpfError: the kernel refuses the events.
    """

    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        self._is_wanted = is_wanted
        with ExitStack() as stack:
            self._rings = [_CpuRing(cpu, stack) for cpu in _online_cpus()]
            self._resources = stack.pop_all()

    def read(self) -> MappedProcesses:
        """The processes that have mapped a wanted file since the last reading."""
        found: set[int] = set()
        are_all = True
        for ring in self._rings:
            for kind, record in ring.records():
                if kind == _RECORD_LOST:
                    are_all = False
                elif kind == _RECORD_MMAP2:
                    name = record[_NAME_AT:].partition(b"\0")[0].rpartition(b"/")[2]
                    if self._is_wanted(os.fsdecode(name)):
                        found.add(int.from_bytes(record[8:12], "little"))
        return MappedProcesses(found, are_all)

    def close(self) -> None:
        """Ends the events."""
        self._resources.close()

    def __enter__(self) -> MappingEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _CpuRing:
    """The perf ring of one CPU."""

    def __init__(self, cpu: int, stack: ExitStack) -> None:
        flags = _MMAP | _MMAP2 | _EXCLUDE_KERNEL | _EXCLUDE_HV | _WATERMARK
        self._bytes = _PAGES * mmap.PAGESIZE
        size = _ATTRIBUTES.size
        attributes = _ATTRIBUTES.pack(_SOFTWARE, size, _DUMMY, 0, 0, 0, flags, self._bytes, 0, 0, 0, 0)
        number = _SYS_PERF_EVENT_OPEN[platform.machine()]
        fd = _libc.syscall(number, attributes, -1, cpu, -1, _CLOSE_ON_EXEC)
        if fd < 0:
            reason = os.strerror(ctypes.get_errno())
            raise BpfError(
                f"mapping events on CPU {cpu}: {reason}", hint="sudo sysctl kernel.perf_event_paranoid, and CAP_PERFMON"
            )
        stack.callback(os.close, fd)
        self._memory = mmap.mmap(fd, mmap.PAGESIZE + self._bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        stack.callback(self._memory.close)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(type, bytes) of each record since the last reading."""
        head, tail = struct.unpack_from("<QQ", self._memory, _HEAD_AT)
        if head == tail:
            return
        data = self._between(tail, head)
        struct.pack_into("<Q", self._memory, _HEAD_AT + 8, head)
        at = 0
        while at < len(data):
            kind, _, size = struct.unpack_from("<IHH", data, at)
            yield kind, data[at : at + size]
            at += size

    def _between(self, tail: int, head: int) -> bytes:
        begin, end = mmap.PAGESIZE + tail % self._bytes, mmap.PAGESIZE + head % self._bytes
        if begin < end:
            return self._memory[begin:end]
        return self._memory[begin:] + self._memory[mmap.PAGESIZE : end]


def _online_cpus() -> list[int]:
    cpus: list[int] = []
    for part in _ONLINE_CPUS.read_text().strip().split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus
