"""One rank of a small NCCL program: `nccl_rank.py SCENARIO RENDEZVOUS RANK RANKS`; prints "at NAME" at each stop."""

from __future__ import annotations

import ctypes as c
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

FLOAT32, FLOAT16, FLOAT64, FLOAT8, INT8 = 7, 6, 8, 10, 0
SUM, MAX = 0, 2
LIBRARIES = Path(os.environ["GPUSIM_LIB"])


class UniqueId(c.Structure):
    """ncclUniqueId, passed by value."""

    _fields_ = (("internal", c.c_char * 128),)


def load() -> c.CDLL:
    """The library, or what holds it ($NCCL_HOST)."""
    nccl = c.CDLL(os.environ.get("NCCL_HOST") or str(LIBRARIES / "libnccl.so.2"))
    p, n, i = c.c_void_p, c.c_size_t, c.c_int
    signatures: dict[str, list[type]] = {
        "CommInitRank": [p, i, UniqueId, i],
        "CommInitRankConfig": [p, i, UniqueId, i, p],
        "CommInitRankScalable": [p, i, i, i, p, p],
        "CommInitAll": [p, i, p],
        "CommSplit": [p, i, i, p, p],
        "CommShrink": [p, p, i, p, p, i],
        "CommUserRank": [p, p],
        "CommCount": [p, p],
        "CommDestroy": [p],
        "CommAbort": [p],
        "CommFinalize": [p],
        "AllReduce": [p, p, n, i, i, p, p],
        "ReduceScatter": [p, p, n, i, i, p, p],
        "AllGather": [p, p, n, i, p, p],
        "AlltoAll": [p, p, n, i, p, p],
        "Reduce": [p, p, n, i, i, i, p, p],
        "Broadcast": [p, p, n, i, i, p, p],
        "Gather": [p, p, n, i, i, p, p],
        "Scatter": [p, p, n, i, i, p, p],
        "Bcast": [p, n, i, i, p, p],
        "Send": [p, n, i, i, p, p],
        "Recv": [p, n, i, i, p, p],
    }
    for name, types in signatures.items():
        if hasattr(nccl, f"nccl{name}"):
            getattr(nccl, f"nccl{name}").argtypes = types
    return nccl


class Rank:
    """This process's end of the job."""

    def __init__(self, rendezvous: str, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.rendezvous = rank, ranks, rendezvous
        self.runtime = c.CDLL(str(LIBRARIES / "libcudart.so.12"))
        self.runtime.cudaStreamSynchronize.argtypes = [c.c_void_p]
        self.check(self.runtime.cudaSetDevice(rank))
        self.runtime.cudaFree(None)
        self.nccl = load()
        self.stream = c.c_void_p()
        self.check(self.runtime.cudaStreamCreateWithFlags(c.byref(self.stream), 1))

    @staticmethod
    def check(error: int) -> None:
        """Raises unless a call succeeded."""
        if error:
            raise RuntimeError(f"error {error}")

    def call(self, name: str, *arguments: object) -> None:
        """An NCCL call that must succeed."""
        self.check(getattr(self.nccl, f"nccl{name}")(*arguments))

    def identity(self, name: str) -> UniqueId:
        """The same identity on all ranks."""
        return UniqueId(f"{self.rendezvous}-{name}".encode())

    def init(self, name: str = "world", call: str = "CommInitRank", *more: object) -> c.c_void_p:
        """A communicator of all ranks."""
        handle = c.c_void_p()
        self.call(call, c.byref(handle), self.ranks, self.identity(name), self.rank, *more)
        return handle

    def all_reduce(self, handle: c.c_void_p, count: int = 1000, kind: int = FLOAT32) -> None:
        """Enqueues an all-reduce."""
        self.call("AllReduce", None, None, count, kind, SUM, handle, self.stream)

    def sync(self) -> None:
        """Waits for the stream."""
        self.check(self.runtime.cudaStreamSynchronize(self.stream))

    drain = sync  # its earlier name, in programs that lie beside the checkout (bench/live_cases.py)

    def stop_at(self, name: str) -> None:
        """Says where it is, and waits to be sent on by a file."""
        print("at", name, file=sys.stderr, flush=True)
        while not Path(f"{self.rendezvous}.{name}").exists():
            time.sleep(0.005)


def every_call(job: Rank) -> None:
    """Each operation, with types of every size."""
    world, (stream, other) = job.init(), (job.stream, (job.rank + 1) % job.ranks)
    for kind, count in ((INT8, 11), (FLOAT16, 12), (FLOAT32, 13), (FLOAT64, 14), (FLOAT8, 15)):
        job.call("AllReduce", None, None, count, kind, MAX, world, stream)
        job.call("AllGather", None, None, count, kind, world, stream)
        job.call("ReduceScatter", None, None, count, kind, SUM, world, stream)
        job.call("AlltoAll", None, None, count, kind, world, stream)
        job.call("Reduce", None, None, count, kind, SUM, 1, world, stream)
        for name in ("Broadcast", "Gather", "Scatter"):
            job.call(name, None, None, count, kind, 1, world, stream)
        job.call("Bcast", None, count, kind, 0, world, stream)
    before = (job.rank - 1) % job.ranks
    for _ in range(3):
        job.call("GroupStart")
        job.call("Send", None, 100, FLOAT32, other, world, stream)
        job.call("Recv", None, 100, FLOAT32, before, world, stream)
        job.call("GroupEnd")
    job.sync()
    job.call("CommDestroy", world)


def many(job: Rank) -> None:
    """More collectives than are recorded one by one, on two communicators."""
    world, second = job.init(), job.init("second", "CommInitRankConfig", None)
    for step in range(3000):
        job.all_reduce(world if step % 3 else second, count=1 + step, kind=FLOAT64 if step % 2 else FLOAT16)
        if step % 50 == 49:
            job.sync()
    job.sync()


def splits(job: Rank) -> None:
    """Splits by color with reversed ranks, with a rank left out, in a group, of a split, and a shrink."""
    world = job.init()
    child = c.c_void_p()
    job.call("CommSplit", world, job.rank % 2, -job.rank, c.byref(child), None)
    job.all_reduce(child)
    partial = c.c_void_p()
    job.call("CommSplit", world, -1 if job.rank == 0 else 5, 0, c.byref(partial), None)
    if job.rank:
        job.all_reduce(partial)
    grouped = c.c_void_p()
    job.call("GroupStart")
    job.call("CommSplit", world, 7, job.rank, c.byref(grouped), None)
    job.call("GroupEnd")
    job.all_reduce(grouped)
    grandchild = c.c_void_p()
    job.call("CommSplit", grouped, job.rank // 2, job.rank, c.byref(grandchild), None)
    job.all_reduce(grandchild)
    if job.rank != 1:
        shrunk = c.c_void_p()
        job.call("CommShrink", world, (c.c_int * 1)(1), 1, c.byref(shrunk), None, 0)
        job.all_reduce(shrunk)
    job.sync()


def makings(job: Rank) -> None:
    """Every way to make a communicator."""
    job.all_reduce(job.init("config", "CommInitRankConfig", None))
    handle = c.c_void_p()
    ids = (UniqueId * 2)(job.identity("first"), job.identity("second"))
    job.call("CommInitRankScalable", c.byref(handle), job.ranks, job.rank, 2, ids, None)
    job.all_reduce(handle)
    job.call("GroupStart")
    grouped = job.init("grouped")
    job.call("GroupEnd")
    job.all_reduce(grouped)
    job.sync()


def one_process(job: Rank) -> None:
    """All ranks in one process, by ncclCommInitAll."""
    handles = (c.c_void_p * 3)()
    job.call("CommInitAll", handles, 3, None)
    streams = [c.c_void_p() for _ in handles]
    for device, stream in enumerate(streams):
        job.check(job.runtime.cudaSetDevice(device))
        job.check(job.runtime.cudaStreamCreateWithFlags(c.byref(stream), 1))
    job.call("GroupStart")
    for handle, stream in zip(handles, streams, strict=True):
        job.call("AllReduce", None, None, 1000, FLOAT32, SUM, handle, stream)
    job.call("GroupEnd")
    for stream in streams:
        job.check(job.runtime.cudaStreamSynchronize(stream))


def late(job: Rank) -> None:
    """A communicator that is there before the agent, one made from it, and one made after."""
    world = job.init()
    for _ in range(5):
        job.all_reduce(world)
    job.sync()
    job.stop_at("tracing")
    for _ in range(5):
        job.all_reduce(world)
    child = c.c_void_p()
    job.call("CommSplit", world, 0, job.rank, c.byref(child), None)
    job.all_reduce(child)
    job.all_reduce(job.init("after"))
    job.sync()
    job.stop_at("asking")
    value = c.c_int()
    job.call("CommUserRank", world, c.byref(value))
    job.call("CommCount", world, c.byref(value))
    job.all_reduce(world)
    job.sync()


def reuse(job: Rank) -> None:
    """Communicators one after the other with the same handle; a refused collective between; the last is aborted."""
    handles = set()
    for count, name in enumerate(("first", "second", "third"), 1):
        handle = job.init(name)
        handles.add(handle.value)
        job.all_reduce(handle, count)
        assert job.nccl.ncclAllReduce(None, None, 1, 99, SUM, handle, job.stream)
        job.all_reduce(handle, count)
        job.sync()
        if name == "third":
            job.call("CommAbort", handle)
        else:
            job.call("CommFinalize", handle)
            job.call("CommDestroy", handle)
    assert len(handles) == 1, handles


def killed(job: Rank) -> None:
    """The last rank stops before a collective that the others wait for."""
    world = job.init()
    job.all_reduce(world)
    job.sync()
    if job.rank == job.ranks - 1:
        job.stop_at("death")
    job.all_reduce(world)
    print("at waiting", file=sys.stderr, flush=True)
    job.sync()


def stragglers(job: Rank) -> None:
    """Rank 1 begins each collective 30 ms later than the others."""
    world = job.init()
    for _ in range(8):
        if job.rank == 1:
            time.sleep(0.03)
        job.all_reduce(world)
        job.sync()


SCENARIOS: dict[str, Callable[[Rank], None]] = {
    one.__name__: one for one in (every_call, many, splits, makings, one_process, late, reuse, killed, stragglers)
}


def main() -> None:
    """Command line."""
    scenario, rendezvous, rank, ranks = sys.argv[1:]
    SCENARIOS[scenario](Rank(rendezvous, int(rank), int(ranks)))


if __name__ == "__main__":
    main()
