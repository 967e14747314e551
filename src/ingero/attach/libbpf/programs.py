"""Loaded programs, and the links that attach them."""

from __future__ import annotations

import ctypes as c
import enum
import fcntl
import os
import platform
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ingero.attach.libbpf.binding import failure, libbpf, libc

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_BPF_LINK_CREATE = 28  # enum bpf_cmd, linux/bpf.h
_UPROBE_MULTI_IS_RETURN = 1  # BPF_F_UPROBE_MULTI_RETURN


class AttachType(enum.IntEnum):
    """Numbers of `enum bpf_attach_type`."""

    UPROBE_MULTI = 48
    UPROBE_SESSION = 57


class _UprobeOptions(c.Structure):
    """struct bpf_uprobe_opts, as far as it is used."""

    _fields_ = (
        ("sz", c.c_size_t),
        ("ref_ctr_offset", c.c_size_t),
        ("bpf_cookie", c.c_uint64),
        ("retprobe", c.c_bool),
        ("func_name", c.c_char_p),
    )


class Link:
    """An attached program; closing detaches it."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        """Detaches; a second call does nothing."""
        if self._close is not None:
            close, self._close = self._close, None
            close()


class CpuClock(Link):
    """A program that the clock of a CPU runs; its ticks can be put further apart, or closer, while it does."""

    def __init__(self, fd: int, close: Callable[[], None]) -> None:
        super().__init__(close)
        self._fd = fd

    def retime(self, period_ns: int) -> None:
        """From now on one tick each period_ns.

        Raises:
            OSError: the kernel refuses, for instance because the CPU is offline.
        """
        if self._close is not None:
            fcntl.ioctl(self._fd, _PERF_EVENT_IOC_PERIOD, struct.pack("=Q", period_ns))


class Program:
    """A loaded program."""

    def __init__(self, name: str, pointer: int) -> None:
        self.name = name
        self._pointer = pointer

    @property
    def fd(self) -> int:
        """Descriptor of the program."""
        return int(libbpf().bpf_program__fd(self._pointer))

    def attach(self) -> Link:
        """Attaches a tracing program to the event its section names."""
        return self._link(libbpf().bpf_program__attach(self._pointer), "attach")

    def attach_uprobe(self, path: str, offset: int, cookie: int, *, is_return: bool = False, pid: int = -1) -> Link:
        """One perf-event uprobe, for all processes or one (needs CAP_SYS_ADMIN; detaching takes 0.1 s each)."""
        options = _UprobeOptions(c.sizeof(_UprobeOptions), 0, cookie, is_return, None)
        link = libbpf().bpf_program__attach_uprobe_opts(self._pointer, pid, path.encode(), offset, c.byref(options))
        return self._link(link, f"uprobe at {path}+{offset:#x}")

    def attach_uprobes(
        self,
        path: str,
        sites: Sequence[tuple[int, int]],
        attach_type: AttachType,
        *,
        is_return: bool = False,
        pid: int = 0,
    ) -> Link:
        """One link for many (offset, cookie) sites of a file, for all processes or one."""
        offsets = (c.c_uint64 * len(sites))(*(offset for offset, _ in sites))
        cookies = (c.c_uint64 * len(sites))(*(cookie for _, cookie in sites))
        name = c.create_string_buffer(os.fsencode(path))
        flags = _UPROBE_MULTI_IS_RETURN if is_return else 0
        head = struct.pack("<IIII", self.fd, 0, attach_type, 0)
        addresses = (c.addressof(name), c.addressof(offsets), 0, c.addressof(cookies))
        fd = _bpf(_BPF_LINK_CREATE, head + struct.pack("<QQQQIII4x", *addresses, len(sites), flags, pid))
        if fd < 0:
            raise failure(f"{self.name}: {attach_type.name.lower()} link on {path} with {len(sites)} probes")
        return Link(lambda: os.close(fd))

    def attach_cpu_clock(self, cpu: int, period_ns: int) -> CpuClock:
        """Runs it at each tick of a CPU's clock, unless that idles; the interrupted task is the current one."""
        fd = _open_cpu_clock(cpu, period_ns)
        pointer = libbpf().bpf_program__attach_perf_event(self._pointer, fd)
        if not pointer:
            error = failure(f"{self.name}: clock of CPU {cpu}")
            os.close(fd)  # a link owns it
            raise error
        return CpuClock(fd, lambda: _destroy(pointer))

    def read_iterator(self) -> bytes:
        """Runs an iterator program once and returns all it wrote."""
        library = libbpf()
        with ExitStack() as stack:
            pointer = library.bpf_program__attach_iter(self._pointer, None)
            if not pointer:
                raise failure(f"iterator {self.name}")
            stack.callback(library.bpf_link__destroy, pointer)
            fd = library.bpf_iter_create(library.bpf_link__fd(pointer))
            if fd < 0:
                raise failure(f"iterator {self.name}", fd)
            stack.callback(os.close, fd)
            return b"".join(iter(lambda: os.read(fd, 1 << 18), b""))

    def _link(self, pointer: int | None, what: str) -> Link:
        if not pointer:
            raise failure(f"{self.name}: {what}")
        return Link(lambda: _destroy(pointer))


def _destroy(pointer: int) -> None:
    libbpf().bpf_link__destroy(pointer)


# struct perf_event_attr (uapi/linux/perf_event.h): type, size, config, sample_period, sample_type, read_format, flags
_PERF_ATTRIBUTES = struct.Struct("<IIQQQQQ")
_PERF_ATTRIBUTES_BYTES = 128
_PERF_TYPE_SOFTWARE, _PERF_COUNT_SW_CPU_CLOCK = 1, 0  # linux/perf_event.h
_PERF_EXCLUDE_IDLE = 1 << 7  # a bit of struct perf_event_attr
_PERF_FLAG_CLOSE_ON_EXEC = 1 << 3  # PERF_FLAG_FD_CLOEXEC
_PERF_EVENT_IOC_PERIOD = 0x40082404  # _IOW('$', 4, __u64)


def _open_cpu_clock(cpu: int, period_ns: int) -> int:
    head = (_PERF_TYPE_SOFTWARE, _PERF_ATTRIBUTES_BYTES, _PERF_COUNT_SW_CPU_CLOCK, period_ns, 0, 0, _PERF_EXCLUDE_IDLE)
    attributes = c.create_string_buffer(_PERF_ATTRIBUTES.pack(*head), _PERF_ATTRIBUTES_BYTES)
    number = _SYS_PERF_EVENT_OPEN[platform.machine()]
    fd = int(libc().syscall(number, attributes, -1, cpu, -1, c.c_ulong(_PERF_FLAG_CLOSE_ON_EXEC)))
    if fd < 0:
        raise failure(f"the clock of CPU {cpu}")
    return fd


def _bpf(command: int, attributes: bytes) -> int:
    buffer = c.create_string_buffer(attributes, 128)
    return int(libc().syscall(_SYS_BPF[platform.machine()], command, buffer, len(attributes)))
