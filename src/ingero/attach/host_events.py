"""The programs that watch the host (block I/O, memory, signals, timers, sockets): what each needs; attaches them."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from types import TracebackType

from ingero.attach.libbpf import BpfError, BpfObject, Map
from ingero.attach.objects import object_path
from ingero.discover import kernel_clock

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")
SLOW_NS = 10_000_000  # events of other processes are recorded from this duration on; shorter ones are only counted


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProgram:
    """One BPF program on one tracepoint; `without` says what a user misses on a kernel that lacks the tracepoint."""

    object_name: str
    program: str
    tracepoint: str
    without: str

    @property
    def group(self) -> str:
        """The option that leaves the program out: "io", "tcp" or "net"; empty: none."""
        return _GROUPS.get(self.program) or _GROUPS.get(self.object_name, "")


def _program(object_name: str, program: str, tracepoint: str, without: str) -> HostProgram:
    return HostProgram(object_name=object_name, program=program, tracepoint=tracepoint, without=without)


# What --no-io, --no-tcp and --no-net leave out.
IO, TCP, NET = "io", "tcp", "net"
_GROUPS = {"block_io": IO, "socket_send": NET, "socket_receive": NET, "tcp": TCP}

_NO_BLOCK_IO = "no block I/O"
_NO_RECLAIM = "direct reclaim on the host is not seen"
_NO_MEMCG_RECLAIM = "reclaim at a cgroup's memory limit is not seen"
_NO_COMPACTION = "memory compaction is not seen"

# The order in which they are attached: a beginning before its end. Programs of one object stand together.
HOST_PROGRAMS: tuple[HostProgram, ...] = (
    _program(
        "block_io",
        "block_insert",
        "block_rq_insert",
        "I/O that a kernel worker dispatches is attributed to that worker",
    ),
    _program("block_io", "block_issue", "block_rq_issue", _NO_BLOCK_IO),
    _program("block_io", "block_complete", "block_rq_complete", _NO_BLOCK_IO),
    _program("memory", "direct_reclaim_begin", "mm_vmscan_direct_reclaim_begin", _NO_RECLAIM),
    _program("memory", "direct_reclaim_end", "mm_vmscan_direct_reclaim_end", _NO_RECLAIM),
    _program("memory", "memcg_reclaim_begin", "mm_vmscan_memcg_reclaim_begin", _NO_MEMCG_RECLAIM),
    _program("memory", "memcg_reclaim_end", "mm_vmscan_memcg_reclaim_end", _NO_MEMCG_RECLAIM),
    _program("memory", "compaction_begin", "mm_compaction_begin", _NO_COMPACTION),
    _program("memory", "compaction_end", "mm_compaction_end", _NO_COMPACTION),
    _program("memory", "page_alloc", "mm_page_alloc", "page allocations of traced processes are not counted"),
    _program("memory", "mark_victim", "mark_victim", "OOM kills are seen only as SIGKILL"),
    _program("signals", "signal_generate", "signal_generate", "who stopped or killed a process is unknown"),
    _program("timers", "timer_expired", "hrtimer_expire_entry", "pauses of the whole host are not seen"),
    _program("tcp", "tcp_retransmit", "tcp_retransmit_skb", "TCP retransmits are not seen"),
    _program("tcp", "tcp_retransmit_synack", "tcp_retransmit_synack", "retransmits of a SYN-ACK are not seen"),
    _program("tcp", "socket_state", "inet_sock_set_state", "a retransmit's process is known after its first send only"),
    _program("tcp", "socket_send", "sock_send_length", "bytes sent are not counted (needs Linux 6.3)"),
    _program("tcp", "socket_receive", "sock_recv_length", "bytes received are not counted (needs Linux 6.3)"),
)


@lru_cache(maxsize=2)
def missing_tracepoints(kernel_btf: Path = KERNEL_BTF) -> frozenset[str]:
    """The tracepoints of HOST_PROGRAMS that this kernel does not have.

    The kernel's BTF has a type `btf_trace_<name>` per tracepoint. Its name is looked for in the bytes: decoding the
    100,000 types would take a second.

    Raises:
        OSError: the kernel has no BTF.
    """
    data = kernel_btf.read_bytes()
    names = {entry.tracepoint for entry in HOST_PROGRAMS}
    return frozenset(name for name in names if f"\0btf_trace_{name}\0".encode() not in data)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnavailableProgram:
    """A program that could not be used, and why."""

    program: HostProgram
    reason: str


class HostEvents:
    """The host event programs, loaded and attached; closing detaches them. `unavailable`: those not usable here.

    Args:
        shared: maps that other objects have already (targets, processes, losses, host, lifecycle).
        programs: those wanted, those of one object together.
        slow_ns: events of other processes are recorded from this duration on.

    Raises:
        ObjectMissingError: an object was not built.
        OSError: the kernel has no BTF.
    """

    def __init__(
        self,
        shared: Mapping[str, Map],
        *,
        programs: Sequence[HostProgram] = HOST_PROGRAMS,
        slow_ns: int = SLOW_NS,
    ) -> None:
        missing = missing_tracepoints()
        self.maps: dict[str, Map] = dict(shared)
        self.unavailable: list[UnavailableProgram] = []
        for entry in programs:
            if entry.tracepoint in missing:
                self.unavailable.append(
                    UnavailableProgram(program=entry, reason=f"this kernel has no tracepoint {entry.tracepoint}")
                )
        usable = [entry for entry in programs if entry.tracepoint not in missing]
        with ExitStack() as stack:
            for name, entries in groupby(usable, key=lambda entry: entry.object_name):
                self._attach(stack, name, list(entries), _constants(slow_ns).get(name))
            self._resources = stack.pop_all()

    def _attach(
        self, stack: ExitStack, name: str, entries: Sequence[HostProgram], constants: Mapping[str, bytes] | None
    ) -> None:
        names = [entry.program for entry in entries]
        try:
            loaded = BpfObject(object_path(name), shared=self.maps, constants=constants, programs=names)
        except BpfError as error:
            self.unavailable += (UnavailableProgram(program=entry, reason=str(error)) for entry in entries)
            return
        stack.enter_context(loaded)
        self.maps |= {key: entry for key, entry in loaded.maps.items() if "." not in key}  # .rodata is its own
        for entry in entries:
            try:
                stack.callback(loaded.program(entry.program).attach().close)
            except BpfError as error:
                self.unavailable.append(UnavailableProgram(program=entry, reason=str(error)))

    def close(self) -> None:
        """Detaches and unloads; a second call does nothing."""
        self._resources.close()

    def __enter__(self) -> HostEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _constants(slow_ns: int) -> dict[str, dict[str, bytes]]:
    slow = struct.pack("<Q", slow_ns)
    return {
        "block_io": {"block_slow_ns": slow, "tracing_since_ns": struct.pack("<Q", kernel_clock.monotonic_ns())},
        "memory": {"memory_slow_ns": slow, "page_bytes": struct.pack("<Q", mmap.PAGESIZE)},
    }
