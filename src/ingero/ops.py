"""The table of traced operations: ids, names, symbols, argument positions, meanings and units.

One row is one traced call. Whatever else names a call (BPF programs, database, texts) is fed from here.

Argument positions count 8-byte integer argument slots from 1, as the C ABI passes them: on x86-64 the slots 1-6 are
registers and the rest stack slots; on arm64 1-8 are registers. A `dim3` passed by value takes two slots.

Sources: CUDA Runtime API and Driver API reference manuals (module pages of 11.8, 12.9, 13.0); NCCL `nccl.h` (2.31).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Source(enum.IntEnum):
    """Where an event comes from. The numbers are published (column `source`)."""

    CUDA = 1
    HOST = 3
    DRIVER = 4
    IO = 5
    TCP = 6
    NET = 7
    CUDA_GRAPH = 8
    NCCL = 9


class Library(enum.Enum):
    """The library that exports the symbols of an operation."""

    CUDART = "libcudart"
    CUDA = "libcuda"
    NCCL = "libnccl"


class Kind(enum.IntFlag):
    """What a call does to streams and memory; the BPF programs act on these bits (cookie bits 8-27)."""

    NONE = 0
    LAUNCH = 1 << 0  # enqueues a kernel, a graph or a host function
    COPY = 1 << 1  # enqueues a copy or a memset
    COLLECTIVE = 1 << 2  # enqueues communication
    SYNC_STREAM = 1 << 3  # waits for one stream
    SYNC_DEVICE = 1 << 4  # waits for every stream of the context
    SYNC_EVENT = 1 << 5  # waits for a recorded position
    EVENT_RECORD = 1 << 6  # stores a stream's position in an event
    STREAM_WAIT = 1 << 7  # makes a stream wait for an event
    ALLOC = 1 << 8
    FREE = 1 << 9
    SET_DEVICE = 1 << 10  # argument `handle` is the device ordinal
    SET_CONTEXT = 1 << 11  # changes the thread's current context, to `handle` unless it pushes or pops
    CAPTURE = 1 << 12  # graph capture or instantiation
    LOAD = 1 << 13  # module or library load
    GRAPH = 1 << 14  # launches a graph: argument `handle` is the instantiated graph
    CONTEXT = 1 << 15  # makes (stores) a context of device `extra` or ends it: argument `handle` is the context
    NCCL = 1 << 16  # begins or ends a group, or argument `handle` is a communicator
    MAP = 1 << 17  # gives physical memory, argument `extra`, an address
    UNMAP = 1 << 18  # takes the addresses of physical memory away

    MEMORY = ALLOC | FREE | MAP | UNMAP
    ENQUEUE = LAUNCH | COPY | COLLECTIVE
    SYNC = SYNC_STREAM | SYNC_DEVICE | SYNC_EVENT


class Flag(enum.IntFlag):
    """How arguments are read, and what the call means to the current device (cookie bits 52-63)."""

    NONE = 0
    PER_THREAD_STREAM = 1 << 0  # the default stream means the calling thread's own (`_ptsz`, `_ptds` symbols)
    STREAM_IN_CONFIG = 1 << 1  # the stream argument points to a launch config; the stream is 32 bytes into it
    HANDLE_OUT = 1 << 2  # the handle argument points to where the call stores the handle
    ASYNC_IF_ON_DEVICE = 1 << 3  # no wait when the extra argument says device to device (cudaMemcpyKind 3)
    TYPED = 1 << 4  # size counts elements of ncclDataType_t `extra`; `times` is ncclRedOp_t, `function` root or peer
    PEER_TO_PEER = 1 << 5  # ncclSend, ncclRecv: not all ranks take part, so it is no step in the communicator's order
    GROUP_BEGIN = 1 << 6
    GROUP_END = 1 << 7
    POPS = 1 << 8  # the context below becomes the current one
    PUSHES = 1 << 9  # the context becomes the current one, the one before comes back when it is popped
    RUNTIME = 1 << 10  # a call of libcudart: on a thread that has chosen no device it works on device 0
    PITCHED = 1 << 11  # allocates `function` rows; argument `extra` points to where it stores the bytes of a row


class MemoryKind(enum.IntEnum):
    """The kind of memory of an allocation or free. The names, in lower case, are published (`memory_kind`)."""

    DEVICE = 1
    MANAGED = 2  # moves between host and device
    PINNED = 3  # of the host, allocated or registered for the device
    MAPPED = 4  # physical memory (cuMemCreate) that is used through the addresses it is mapped to


STREAM_OFFSET_IN_CONFIG_BYTES = 32  # cudaLaunchConfig_t.stream and CUlaunchConfig.hStream (CUDA 11.8 - 13 headers)

# ncclDataType_t by value, with the bytes of one element (nccl.h: enum ncclDataType_t; the last two since 2.24)
NCCL_DATATYPES: tuple[tuple[str, int], ...] = (
    ("int8", 1),
    ("uint8", 1),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("bfloat16", 2),
    ("float8e4m3", 1),
    ("float8e5m2", 1),
)
# ncclRedOp_t by value (nccl.h: enum ncclRedOp_t); what ncclRedOpCreatePreMulSum makes comes after these
NCCL_REDUCE_OPS = ("sum", "prod", "max", "min", "avg")


class CommunicatorRole(enum.IntEnum):
    """What a call reveals about a communicator; used by `bpf/nccl.bpf.c` (attach cookie)."""

    INIT_RANK = 1
    INIT_ALL = 2
    INIT_SCALABLE = 3
    SPLIT = 4
    SHRINK = 5
    GROW = 6
    GROUP_END = 7
    END = 8
    FINALIZE = 9
    USER_RANK = 10
    COUNT = 11


COMMUNICATOR_CALLS: dict[str, CommunicatorRole] = {
    "ncclCommInitRank": CommunicatorRole.INIT_RANK,
    "ncclCommInitRankConfig": CommunicatorRole.INIT_RANK,
    "ncclCommInitAll": CommunicatorRole.INIT_ALL,
    "ncclCommInitRankScalable": CommunicatorRole.INIT_SCALABLE,
    "ncclCommSplit": CommunicatorRole.SPLIT,
    "ncclCommShrink": CommunicatorRole.SHRINK,
    "ncclCommGrow": CommunicatorRole.GROW,
    "ncclGroupEnd": CommunicatorRole.GROUP_END,
    "ncclCommDestroy": CommunicatorRole.END,
    "ncclCommAbort": CommunicatorRole.END,
    "ncclCommFinalize": CommunicatorRole.FINALIZE,
    "ncclCommUserRank": CommunicatorRole.USER_RANK,
    "ncclCommCount": CommunicatorRole.COUNT,
}


class KernelNameRole(enum.IntEnum):
    """What a call reveals about a kernel's name; used by `bpf/kernel_names.bpf.c` (attach cookie, ring)."""

    REGISTERED = 1  # the handle is the address of a host stub, the name that of its kernel
    NAMED = 2  # a handle that was asked for by name
    MADE = 3  # a handle that was asked for by what it is made from
    TOLD = 4  # the name of a handle that exists


KERNEL_NAME_CALLS: dict[str, KernelNameRole] = {
    "__cudaRegisterFunction": KernelNameRole.REGISTERED,
    "cuModuleGetFunction": KernelNameRole.NAMED,
    "cuLibraryGetKernel": KernelNameRole.NAMED,
    "cudaLibraryGetKernel": KernelNameRole.NAMED,
    "__cudaGetKernel": KernelNameRole.MADE,
    "cudaGetKernel": KernelNameRole.MADE,
    "cudaGetFuncBySymbol": KernelNameRole.MADE,
    "cuKernelGetFunction": KernelNameRole.MADE,
    "cuFuncGetName": KernelNameRole.TOLD,
    "cuKernelGetName": KernelNameRole.TOLD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg:
    """One argument that is recorded: its slot, what it means and in which unit."""

    slot: int
    name: str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One traced call.

    id: dense number, 1-255, used between kernel and agent only; not stable between versions.
    source, code: the published pair (columns `source`, `op`), stable for ever.
    symbols: exported names that are this call, newest first; the suffixes `_ptsz` and `_ptds` mean a per-thread
        default stream.
    bytes, times: the size of the call is the first, multiplied by the second where there is one.
    handle: event, graph, communicator, allocation or device; function: the kernel of a launch.
    memory: of an allocation, and of the free that ends it; None where the two are not paired.
    reduce_op, root: of a collective (Flag.TYPED), in the cookie's places of `times` and `function`.
    to, origin: the ends of a copy that may be in the host's memory, in the cookie's places of `handle` and `function`.
        One of them alone says which way the bytes go; of both, `extra` (cudaMemcpyKind) does where there is one.
    """

    id: int
    source: Source
    code: int
    name: str
    library: Library
    symbols: tuple[str, ...]
    kind: Kind
    flags: Flag
    bytes: Arg | None = None
    times: Arg | None = None
    stream: Arg | None = None
    handle: Arg | None = None
    function: Arg | None = None
    extra: Arg | None = None
    reduce_op: Arg | None = None
    root: Arg | None = None
    to: Arg | None = None
    origin: Arg | None = None
    memory: MemoryKind | None = None
    aliases: tuple[str, ...] = ()

    def cookie(self, symbol: str) -> int:
        """The attach cookie of this call for one of its symbols (layout: `bpf/ops_gen.h`)."""
        flags = self.flags | (Flag.PER_THREAD_STREAM if symbol.endswith(("_ptsz", "_ptds")) else Flag.NONE)
        value = self.id | int(self.kind) << 8
        times, function = self.times or self.reduce_op, self.function or self.root or self.origin
        slots = (self.bytes, times, self.stream, self.handle or self.to, function, self.extra)
        for index, arg in enumerate(slots):
            value |= (arg.slot if arg else 0) << (28 + 4 * index)
        return value | int(flags) << 52


def _bytes(slot: int) -> Arg:
    return Arg(slot=slot, name="size", unit="bytes")


def _stream(slot: int) -> Arg:
    return Arg(slot=slot, name="stream")


def _out(slot: int, name: str) -> Arg:
    return Arg(slot=slot, name=name)


_POINTER = "pointer"
_KIND = "cudaMemcpyKind"


class _Table:
    """Collects rows in order; the position gives the id."""

    def __init__(self) -> None:
        self.rows: list[Op] = []

    def add(
        self,
        source: Source,
        code: int,
        name: str,
        kind: Kind = Kind.NONE,
        *,
        also: tuple[str, ...] = (),
        flags: Flag = Flag.NONE,
        suffixes: tuple[str, ...] = (),
        only: tuple[str, ...] = (),
        size: int = 0,
        times: int = 0,
        stream: int = 0,
        handle: Arg | None = None,
        function: int = 0,
        extra: Arg | None = None,
        reduce_op: int = 0,
        root: int = 0,
        to: int = 0,
        origin: int = 0,
        memory: MemoryKind | None = None,
        aliases: tuple[str, ...] = (),
    ) -> None:
        names = only or (name, *also)
        library = _library_of(name)
        symbols = tuple(base + suffix for base in names for suffix in ("", *suffixes))
        self.rows.append(
            Op(
                id=len(self.rows) + 1,
                source=source,
                code=code,
                name=name,
                library=library,
                symbols=symbols,
                kind=kind,
                flags=flags | (Flag.RUNTIME if library is Library.CUDART else Flag.NONE),
                bytes=_bytes(size) if size else None,
                times=Arg(slot=times, name="times") if times else None,
                stream=_stream(stream) if stream else None,
                handle=handle,
                function=Arg(slot=function, name="function") if function else None,
                extra=extra,
                reduce_op=Arg(slot=reduce_op, name="ncclRedOp_t") if reduce_op else None,
                root=Arg(slot=root, name="root or peer") if root else None,
                to=Arg(slot=to, name="destination") if to else None,
                origin=Arg(slot=origin, name="source") if origin else None,
                memory=memory,
                aliases=aliases,
            )
        )


def _library_of(name: str) -> Library:
    if name.startswith("nccl"):
        return Library.NCCL
    return Library.CUDART if name.startswith("cuda") else Library.CUDA


_PTSZ = ("_ptsz",)
_PTDS = ("_ptds",)
_BLOCKING_COPY = Kind.COPY | Kind.SYNC_STREAM
_DEVICE, _MANAGED, _PINNED, _MAPPED = MemoryKind


# one row is one call
# fmt: off
def _runtime_rows(table: _Table) -> None:
    cuda = Source.CUDA
    out = _out(1, _POINTER)
    ptr = Arg(slot=1, name=_POINTER)
    add = table.add
    add(cuda, 1, "cudaMalloc", Kind.ALLOC, size=2, handle=out, flags=Flag.HANDLE_OUT, memory=_DEVICE)
    add(cuda, 2, "cudaFree", Kind.FREE, handle=ptr, memory=_DEVICE)
    add(cuda, 3, "cudaLaunchKernel", Kind.LAUNCH, suffixes=_PTSZ, function=1, stream=8)
    add(cuda, 4, "cudaMemcpy", _BLOCKING_COPY, suffixes=_PTDS, size=3, extra=Arg(slot=4, name=_KIND),
        flags=Flag.ASYNC_IF_ON_DEVICE, to=1, origin=2)
    add(cuda, 5, "cudaStreamSynchronize", Kind.SYNC_STREAM, suffixes=_PTSZ, stream=1, aliases=("cudaStreamSync",))
    add(cuda, 6, "cudaDeviceSynchronize", Kind.SYNC_DEVICE, also=("cudaThreadSynchronize",),
        aliases=("cudaDeviceSync",))
    add(cuda, 7, "cudaMemcpyAsync", Kind.COPY, suffixes=_PTSZ, size=3, stream=5, extra=Arg(slot=4, name=_KIND),
        to=1, origin=2)
    add(cuda, 8, "cudaMallocManaged", Kind.ALLOC, size=2, handle=out, flags=Flag.HANDLE_OUT, memory=_MANAGED)
    add(cuda, 9, "cudaMemcpy2D", _BLOCKING_COPY, suffixes=_PTDS, size=5, times=6, extra=Arg(slot=7, name=_KIND),
        flags=Flag.ASYNC_IF_ON_DEVICE, to=1, origin=3)
    add(cuda, 10, "cudaMemcpy2DAsync", Kind.COPY, suffixes=_PTSZ, size=5, times=6, stream=8, extra=Arg(slot=7,
        name=_KIND), to=1, origin=3)
    add(cuda, 11, "cudaMemcpyPeer", Kind.COPY, size=5)
    add(cuda, 12, "cudaMemcpyPeerAsync", Kind.COPY, size=5, stream=6)
    add(cuda, 13, "cudaLaunchKernelExC", Kind.LAUNCH, suffixes=_PTSZ, function=2, stream=1, flags=Flag.STREAM_IN_CONFIG)
    add(cuda, 14, "cudaLaunchCooperativeKernel", Kind.LAUNCH, suffixes=_PTSZ, function=1, stream=8)
    add(cuda, 15, "cudaLaunchHostFunc", Kind.LAUNCH, also=("cudaLaunchHostFunc_v2",), suffixes=_PTSZ,
        handle=Arg(slot=2, name="host function"), stream=1)
    add(cuda, 16, "cudaMallocAsync", Kind.ALLOC, suffixes=_PTSZ, size=2, stream=3, handle=out, flags=Flag.HANDLE_OUT,
        memory=_DEVICE)
    add(cuda, 17, "cudaMallocFromPoolAsync", Kind.ALLOC, suffixes=_PTSZ, size=2, stream=4, handle=out,
        flags=Flag.HANDLE_OUT, memory=_DEVICE)
    add(cuda, 18, "cudaMallocPitch", Kind.ALLOC, size=3, times=4, handle=out, function=4, extra=Arg(slot=2,
        name="pitch"), flags=Flag.HANDLE_OUT | Flag.PITCHED, memory=_DEVICE)
    add(cuda, 19, "cudaMallocHost", Kind.ALLOC, size=2, handle=out, flags=Flag.HANDLE_OUT, memory=_PINNED)
    add(cuda, 20, "cudaHostAlloc", Kind.ALLOC, size=2, handle=out, flags=Flag.HANDLE_OUT, extra=Arg(slot=3,
        name="flags"), memory=_PINNED)
    add(cuda, 21, "cudaHostRegister", Kind.ALLOC, size=2, handle=ptr, memory=_PINNED)
    add(cuda, 22, "cudaHostUnregister", Kind.FREE, handle=ptr, memory=_PINNED)
    add(cuda, 23, "cudaFreeAsync", Kind.FREE, suffixes=_PTSZ, stream=2, handle=ptr, memory=_DEVICE)
    add(cuda, 24, "cudaFreeHost", Kind.FREE, handle=ptr, memory=_PINNED)
    add(cuda, 25, "cudaMemPoolTrimTo", Kind.FREE, size=2, handle=Arg(slot=1, name="pool"))
    add(cuda, 26, "cudaMemset", Kind.COPY, suffixes=_PTDS, size=3)
    add(cuda, 27, "cudaMemsetAsync", Kind.COPY, suffixes=_PTSZ, size=3, stream=4)
    add(cuda, 28, "cudaMemset2D", Kind.COPY, suffixes=_PTDS, size=4, times=5)
    add(cuda, 29, "cudaMemset2DAsync", Kind.COPY, suffixes=_PTSZ, size=4, times=5, stream=6)
    add(cuda, 30, "cudaMemcpyToSymbol", _BLOCKING_COPY, suffixes=_PTDS, size=3, extra=Arg(slot=5, name=_KIND),
        flags=Flag.ASYNC_IF_ON_DEVICE, origin=2)
    add(cuda, 31, "cudaMemcpyToSymbolAsync", Kind.COPY, suffixes=_PTSZ, size=3, stream=6, extra=Arg(slot=5, name=_KIND),
        origin=2)
    add(cuda, 32, "cudaMemcpyFromSymbol", _BLOCKING_COPY, suffixes=_PTDS, size=3, extra=Arg(slot=5, name=_KIND),
        flags=Flag.ASYNC_IF_ON_DEVICE, to=1)
    add(cuda, 33, "cudaMemcpyFromSymbolAsync", Kind.COPY, suffixes=_PTSZ, size=3, stream=6, extra=Arg(slot=5,
        name=_KIND), to=1)
    add(cuda, 34, "cudaMemcpy3D", _BLOCKING_COPY, suffixes=_PTDS)  # pointers, bytes and kind are in its structure
    add(cuda, 35, "cudaMemcpy3DAsync", Kind.COPY, suffixes=_PTSZ, stream=2, to=1, origin=1)
    add(cuda, 36, "cudaMemcpy3DPeer", Kind.COPY, suffixes=_PTDS)
    add(cuda, 37, "cudaMemcpy3DPeerAsync", Kind.COPY, suffixes=_PTSZ, stream=2)
    add(cuda, 38, "cudaEventSynchronize", Kind.SYNC_EVENT, handle=Arg(slot=1, name="event"))
    add(cuda, 39, "cudaEventRecord", Kind.EVENT_RECORD, suffixes=_PTSZ, stream=2, handle=Arg(slot=1, name="event"))
    add(cuda, 40, "cudaEventRecordWithFlags", Kind.EVENT_RECORD, suffixes=_PTSZ, stream=2, handle=Arg(slot=1,
        name="event"))
    add(cuda, 41, "cudaStreamWaitEvent", Kind.STREAM_WAIT, suffixes=_PTSZ, stream=1, handle=Arg(slot=2, name="event"))
    add(cuda, 42, "cudaSetDevice", Kind.SET_DEVICE, handle=Arg(slot=1, name="device"))
    add(cuda, 43, "cudaLibraryLoadData", Kind.LOAD)
    add(cuda, 44, "cudaLibraryLoadFromFile", Kind.LOAD)


def _graph_rows(table: _Table) -> None:
    graph, add = Source.CUDA_GRAPH, table.add
    out, handle = _out(1, "graphExec"), Arg(slot=1, name="graphExec")
    add(graph, 1, "cudaStreamBeginCapture", Kind.CAPTURE, suffixes=_PTSZ, stream=1, aliases=("graphBeginCapture",))
    add(graph, 2, "cudaStreamEndCapture", Kind.CAPTURE, suffixes=_PTSZ, stream=1, handle=_out(2, "graph"),
        flags=Flag.HANDLE_OUT, aliases=("graphEndCapture",))
    add(graph, 3, "cudaGraphInstantiate", Kind.CAPTURE, also=("cudaGraphInstantiateWithFlags",
        "cudaGraphInstantiateWithParams", "cudaGraphInstantiateWithParams_ptsz"), handle=out, flags=Flag.HANDLE_OUT,
        extra=Arg(slot=2, name="graph"), aliases=("graphInstantiate",))
    add(graph, 4, "cudaGraphLaunch", Kind.LAUNCH | Kind.GRAPH, suffixes=_PTSZ, handle=handle, stream=2,
        aliases=("graphLaunch",))
    add(graph, 5, "cudaGraphExecUpdate", Kind.CAPTURE, handle=handle, extra=Arg(slot=2, name="graph"))
    add(graph, 6, "cudaStreamBeginCaptureToGraph", Kind.CAPTURE, suffixes=_PTSZ, stream=1)
    add(graph, 11, "cuStreamBeginCapture", Kind.CAPTURE, also=("cuStreamBeginCapture_v2",), suffixes=_PTSZ, stream=1)
    add(graph, 12, "cuStreamEndCapture", Kind.CAPTURE, suffixes=_PTSZ, stream=1, handle=_out(2, "graph"),
        flags=Flag.HANDLE_OUT)
    add(graph, 13, "cuGraphInstantiate", Kind.CAPTURE, also=("cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags",
        "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"), handle=out, flags=Flag.HANDLE_OUT,
        extra=Arg(slot=2, name="graph"))
    add(graph, 14, "cuGraphLaunch", Kind.LAUNCH | Kind.GRAPH, suffixes=_PTSZ, handle=handle, stream=2)
    add(graph, 15, "cuGraphExecUpdate", Kind.CAPTURE, also=("cuGraphExecUpdate_v2",), handle=handle, extra=Arg(slot=2,
        name="graph"))
    add(graph, 16, "cuStreamBeginCaptureToGraph", Kind.CAPTURE, suffixes=_PTSZ, stream=1)


def _driver_rows(table: _Table) -> None:
    drv, add = Source.DRIVER, table.add
    out = _out(1, _POINTER)
    ptr = Arg(slot=1, name=_POINTER)
    add(drv, 1, "cuLaunchKernel", Kind.LAUNCH, suffixes=_PTSZ, function=1, stream=9)
    add(drv, 2, "cuMemcpy", _BLOCKING_COPY, suffixes=_PTDS, size=3, to=1, origin=2)
    add(drv, 3, "cuMemcpyAsync", Kind.COPY, suffixes=_PTSZ, size=3, stream=4, to=1, origin=2)
    add(drv, 4, "cuCtxSynchronize", Kind.SYNC_DEVICE, also=("cuCtxSynchronize_v2",))
    add(drv, 5, "cuMemAlloc", Kind.ALLOC, only=("cuMemAlloc_v2", "cuMemAlloc"), size=2, handle=out,
        flags=Flag.HANDLE_OUT, memory=_DEVICE)
    add(drv, 6, "cuMemAllocManaged", Kind.ALLOC, size=2, handle=out, flags=Flag.HANDLE_OUT, memory=_MANAGED)
    add(drv, 7, "cuLaunchKernelEx", Kind.LAUNCH, suffixes=_PTSZ, function=2, stream=1, flags=Flag.STREAM_IN_CONFIG)
    add(drv, 8, "cuLaunchCooperativeKernel", Kind.LAUNCH, suffixes=_PTSZ, function=1, stream=9)
    add(drv, 9, "cuLaunchHostFunc", Kind.LAUNCH, also=("cuLaunchHostFunc_v2",), suffixes=_PTSZ, handle=Arg(slot=2,
        name="host function"), stream=1)
    add(drv, 10, "cuMemFree", Kind.FREE, only=("cuMemFree_v2", "cuMemFree"), handle=ptr, memory=_DEVICE)
    add(drv, 11, "cuMemAllocAsync", Kind.ALLOC, suffixes=_PTSZ, size=2, stream=3, handle=out, flags=Flag.HANDLE_OUT,
        memory=_DEVICE)
    add(drv, 12, "cuMemAllocFromPoolAsync", Kind.ALLOC, suffixes=_PTSZ, size=2, stream=4, handle=out,
        flags=Flag.HANDLE_OUT, memory=_DEVICE)
    add(drv, 13, "cuMemFreeAsync", Kind.FREE, suffixes=_PTSZ, stream=2, handle=ptr, memory=_DEVICE)
    add(drv, 14, "cuMemAllocHost", Kind.ALLOC, only=("cuMemAllocHost_v2", "cuMemAllocHost"), size=2, handle=out,
        flags=Flag.HANDLE_OUT, memory=_PINNED)
    add(drv, 15, "cuMemHostAlloc", Kind.ALLOC, size=2, handle=out, flags=Flag.HANDLE_OUT, extra=Arg(slot=3,
        name="flags"), memory=_PINNED)
    add(drv, 16, "cuMemFreeHost", Kind.FREE, handle=ptr, memory=_PINNED)
    add(drv, 17, "cuMemHostRegister", Kind.ALLOC, only=("cuMemHostRegister_v2", "cuMemHostRegister"), size=2,
        handle=ptr, memory=_PINNED)
    add(drv, 18, "cuMemHostUnregister", Kind.FREE, handle=ptr, memory=_PINNED)
    add(drv, 19, "cuMemAllocPitch", Kind.ALLOC, only=("cuMemAllocPitch_v2", "cuMemAllocPitch"), size=3, times=4,
        handle=out, function=4, extra=Arg(slot=2, name="pitch"), flags=Flag.HANDLE_OUT | Flag.PITCHED, memory=_DEVICE)
    add(drv, 20, "cuMemCreate", Kind.ALLOC, size=2, handle=_out(1, "handle"), flags=Flag.HANDLE_OUT, memory=_MAPPED)
    add(drv, 21, "cuMemRelease", Kind.FREE, handle=Arg(slot=1, name="handle"), memory=_MAPPED)
    add(drv, 22, "cuMemMap", Kind.MAP, size=2, handle=ptr, extra=Arg(slot=4, name="handle"))
    add(drv, 23, "cuMemUnmap", Kind.UNMAP, size=2, handle=ptr)
    add(drv, 24, "cuMemPoolTrimTo", Kind.FREE, size=2, handle=Arg(slot=1, name="pool"))
    _driver_copy_rows(table)
    add(drv, 60, "cuStreamSynchronize", Kind.SYNC_STREAM, suffixes=_PTSZ, stream=1)
    add(drv, 61, "cuEventSynchronize", Kind.SYNC_EVENT, handle=Arg(slot=1, name="event"))
    add(drv, 62, "cuEventRecord", Kind.EVENT_RECORD, suffixes=_PTSZ, stream=2, handle=Arg(slot=1, name="event"))
    add(drv, 63, "cuEventRecordWithFlags", Kind.EVENT_RECORD, suffixes=_PTSZ, stream=2, handle=Arg(slot=1,
        name="event"))
    add(drv, 64, "cuStreamWaitEvent", Kind.STREAM_WAIT, suffixes=_PTSZ, stream=1, handle=Arg(slot=2, name="event"))
    add(drv, 65, "cuCtxSetCurrent", Kind.SET_CONTEXT, handle=Arg(slot=1, name="context"))
    add(drv, 66, "cuModuleLoad", Kind.LOAD)
    add(drv, 67, "cuModuleLoadData", Kind.LOAD)
    add(drv, 68, "cuModuleLoadDataEx", Kind.LOAD)
    add(drv, 69, "cuModuleLoadFatBinary", Kind.LOAD)
    add(drv, 70, "cuLibraryLoadData", Kind.LOAD)
    add(drv, 71, "cuLibraryLoadFromFile", Kind.LOAD)
    add(drv, 72, "cuModuleUnload", Kind.LOAD)
    _driver_context_rows(table)


def _driver_context_rows(table: _Table) -> None:
    drv, add = Source.DRIVER, table.add
    ctx, out = Arg(slot=1, name="context"), _out(1, "context")
    add(drv, 73, "cuDevicePrimaryCtxRetain", Kind.CONTEXT, handle=out, extra=Arg(slot=2, name="device"),
        flags=Flag.HANDLE_OUT)
    add(drv, 74, "cuDevicePrimaryCtxRelease", also=("cuDevicePrimaryCtxRelease_v2",), extra=Arg(slot=1, name="device"))
    makes, pushed = Kind.CONTEXT | Kind.SET_CONTEXT, Flag.HANDLE_OUT | Flag.PUSHES
    add(drv, 75, "cuCtxCreate", makes, only=("cuCtxCreate_v2", "cuCtxCreate"), handle=out, extra=Arg(slot=3,
        name="device"), flags=pushed)
    add(drv, 76, "cuCtxCreate_v3", makes, handle=out, extra=Arg(slot=5, name="device"), flags=pushed)
    add(drv, 77, "cuCtxCreate_v4", makes, handle=out, extra=Arg(slot=4, name="device"), flags=pushed)
    add(drv, 78, "cuCtxPushCurrent", Kind.SET_CONTEXT, only=("cuCtxPushCurrent_v2", "cuCtxPushCurrent"), handle=ctx,
        flags=Flag.PUSHES)
    add(drv, 79, "cuCtxPopCurrent", Kind.SET_CONTEXT, only=("cuCtxPopCurrent_v2", "cuCtxPopCurrent"), handle=out,
        flags=Flag.HANDLE_OUT | Flag.POPS)
    add(drv, 80, "cuCtxDestroy", Kind.CONTEXT, only=("cuCtxDestroy_v2", "cuCtxDestroy"), handle=ctx)
    # what was allocated in the context goes with it; cudaDeviceReset calls this
    add(drv, 81, "cuDevicePrimaryCtxReset", Kind.CONTEXT, also=("cuDevicePrimaryCtxReset_v2",))


def _driver_copy_rows(table: _Table) -> None:
    drv, add = Source.DRIVER, table.add
    v2 = ("_v2",)
    add(drv, 30, "cuMemcpyHtoD", _BLOCKING_COPY, only=("cuMemcpyHtoD_v2", "cuMemcpyHtoD"), suffixes=_PTDS, size=3,
        origin=2)
    add(drv, 31, "cuMemcpyDtoH", _BLOCKING_COPY, only=("cuMemcpyDtoH_v2", "cuMemcpyDtoH"), suffixes=_PTDS, size=3,
        to=1)
    add(drv, 32, "cuMemcpyDtoD", Kind.COPY, only=("cuMemcpyDtoD_v2", "cuMemcpyDtoD"), suffixes=_PTDS, size=3)
    for code, name, to, origin in ((33, "cuMemcpyHtoDAsync", 0, 2), (34, "cuMemcpyDtoHAsync", 1, 0),
                                   (35, "cuMemcpyDtoDAsync", 0, 0)):
        add(drv, code, name, Kind.COPY, only=(f"{name}_v2", name), suffixes=_PTSZ, size=3, stream=4, to=to,
            origin=origin)
    add(drv, 36, "cuMemcpyPeer", Kind.COPY, suffixes=_PTDS, size=5)
    add(drv, 37, "cuMemcpyPeerAsync", Kind.COPY, suffixes=_PTSZ, size=5, stream=6)
    for code, name in ((38, "cuMemcpy2D"), (39, "cuMemcpy2DUnaligned"), (40, "cuMemcpy3D")):
        add(drv, code, name, _BLOCKING_COPY, only=tuple(name + v for v in (*v2, "")), suffixes=_PTDS)
    for code, name in ((41, "cuMemcpy2DAsync"), (42, "cuMemcpy3DAsync")):
        add(drv, code, name, Kind.COPY, only=tuple(name + v for v in (*v2, "")), suffixes=_PTSZ, stream=2, to=1,
            origin=1)
    for code, name in ((43, "cuMemsetD8"), (44, "cuMemsetD16"), (45, "cuMemsetD32")):
        add(drv, code, name, Kind.COPY, only=(f"{name}_v2", name), suffixes=_PTDS, size=3)
        add(drv, code + 3, f"{name}Async", Kind.COPY, suffixes=_PTSZ, size=3, stream=4)
    for code, name in ((49, "cuMemsetD2D8"), (50, "cuMemsetD2D16"), (51, "cuMemsetD2D32")):
        add(drv, code, name, Kind.COPY, only=(f"{name}_v2", name), suffixes=_PTDS, size=4, times=5)
        add(drv, code + 3, f"{name}Async", Kind.COPY, suffixes=_PTSZ, size=4, times=5, stream=6)


def _nccl_rows(table: _Table) -> None:
    nccl, add, kind = Source.NCCL, table.add, Kind.NCCL
    out, comm = _out(1, "communicator"), Arg(slot=1, name="communicator")
    add(nccl, 1, "ncclCommInitRank", handle=out, flags=Flag.HANDLE_OUT, aliases=("ncclInitRank",))
    add(nccl, 2, "ncclCommDestroy", kind, handle=comm, aliases=("ncclDestroy",))
    _collective_rows(table)
    add(nccl, 9, "ncclCommInitAll", handle=out, flags=Flag.HANDLE_OUT)
    add(nccl, 10, "ncclCommInitRankConfig", handle=out, flags=Flag.HANDLE_OUT)
    add(nccl, 11, "ncclCommSplit", kind, handle=comm)
    add(nccl, 14, "ncclGroupStart", kind, flags=Flag.GROUP_BEGIN)
    add(nccl, 15, "ncclGroupEnd", kind, also=("ncclGroupSimulateEnd",), flags=Flag.GROUP_END)
    add(nccl, 16, "ncclCommAbort", kind, handle=comm)
    add(nccl, 17, "ncclCommFinalize", kind, handle=comm)
    add(nccl, 21, "ncclCommInitRankScalable", handle=out, flags=Flag.HANDLE_OUT)
    add(nccl, 22, "ncclCommShrink", kind, handle=comm)
    add(nccl, 23, "ncclCommGrow", handle=_out(5, "communicator"), flags=Flag.HANDLE_OUT)


def _collective_rows(table: _Table) -> None:
    def add(code: int, name: str, count: int, *, reduce_op: int = 0, root: int = 0, comm: int, peer: bool = False,
            has_config: bool = True) -> None:
        table.add(Source.NCCL, code, name, Kind.COLLECTIVE | Kind.NCCL, also=(f"{name}Config",) if has_config else (),
            size=count, extra=Arg(slot=count + 1, name="ncclDataType_t"), reduce_op=reduce_op, root=root,
            handle=Arg(slot=comm, name="communicator"), stream=comm + 1,
            flags=Flag.TYPED | (Flag.PEER_TO_PEER if peer else Flag.NONE))

    add(3, "ncclAllReduce", 3, reduce_op=5, comm=6)
    add(4, "ncclAllGather", 3, comm=5)
    add(5, "ncclReduceScatter", 3, reduce_op=5, comm=6)
    add(6, "ncclBroadcast", 3, root=5, comm=6)
    add(7, "ncclSend", 2, root=4, comm=5, peer=True, has_config=False)
    add(8, "ncclRecv", 2, root=4, comm=5, peer=True, has_config=False)
    add(12, "ncclReduce", 3, reduce_op=5, root=6, comm=7)
    add(13, "ncclBcast", 2, root=4, comm=5, has_config=False)
    add(18, "ncclAlltoAll", 3, comm=5)
    add(19, "ncclGather", 3, root=5, comm=6)
    add(20, "ncclScatter", 3, root=5, comm=6)


# fmt: on


def _build() -> tuple[Op, ...]:
    table = _Table()
    for rows in (_runtime_rows, _graph_rows, _driver_rows, _nccl_rows):
        rows(table)
    return tuple(table.rows)


OPS: tuple[Op, ...] = _build()
BY_ID: dict[int, Op] = {op.id: op for op in OPS}
BY_CODE: dict[tuple[Source, int], Op] = {(op.source, op.code): op for op in OPS}
BY_NAME: dict[str, Op] = {name: op for op in OPS for name in (*op.aliases, op.name)}


class HostOp(enum.IntEnum):
    """Operations of source HOST (published numbers)."""

    SCHED_SWITCH = 1
    SCHED_WAKEUP = 2
    PAGE_ALLOC = 3
    OOM_KILL = 4
    PROCESS_EXEC = 5
    PROCESS_EXIT = 6
    PROCESS_FORK = 7
    POD_RESTART = 10
    POD_EVICTION = 11
    POD_OOM_KILL = 12
    PAGE_ALLOC_SUMMARY = 20
    SCHED_SWITCH_SUMMARY = 21
    DIRECT_RECLAIM = 30
    COMPACTION = 31
    MAJOR_FAULT = 32
    STOP_SIGNAL = 33
    LATE_TIMER = 34


class IoOp(enum.IntEnum):
    """Operations of source IO (published numbers)."""

    READ = 1
    WRITE = 2
    DISCARD = 3
    FLUSH = 4


class TcpOp(enum.IntEnum):
    """Operations of source TCP (published numbers)."""

    RETRANSMIT = 1


class NetOp(enum.IntEnum):
    """Operations of source NET (published numbers)."""

    SEND = 1
    RECEIVE = 2


def memory_kinds() -> bytes:
    """The kind of memory of each operation, by id; 0: none, or not paired."""
    return bytes(BY_ID[op].memory or 0 if op in BY_ID else 0 for op in range(256))


def is_launch(source: int, code: int) -> bool:
    """Whether a published operation launches something."""
    op = BY_CODE.get((Source(source), code)) if source in set(Source) else None
    return bool(op and op.kind & Kind.LAUNCH)


def op_named(name: str) -> Op | None:
    """The operation a user means by `name`: the real symbol or the short name older versions used."""
    return BY_NAME.get(name)
