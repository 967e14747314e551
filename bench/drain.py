"""How many records a second the agent drains, decodes and sums while it stores some of them, and for what CPU time.

A BPF program in a process of its own fills a ring with off-CPU records (96 bytes, the most frequent kind). This process
drains it as the agent does, sums every record by state, thread and length, and hands 20,000 a second to the database.
Then the same with every record offered to the database, far beyond what it takes: nothing may be lost uncounted.

Run as root: python -m bench.drain [--rate N] [--seconds S] [--short] [--json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import platform
import select
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import apsw
import numpy as np

import ingero
from bench.agent import require_quiet_kernel
from ingero.attach.kernel_side import KernelSizes
from ingero.attach.libbpf import BpfObject
from ingero.attach.objects import object_path
from ingero.capture.loop.clocks import WallClock, read_pair
from ingero.capture.loop.rings import Ring
from ingero.capture.processes.traced_processes import TracedProcesses
from ingero.capture.records.rows import RowMaker
from ingero.decode.btf import btf_of
from ingero.store.records import SessionFacts
from ingero.store.writing.writer import Writer

BENCH = Path(__file__).resolve().parent
BURST = 1000  # records per run of the program: a test run costs a system call
ROWS_PER_S = 20_000
ROWS_AT_ONCE = 2000  # making rows costs nearly the same for one and for a hundred; the agent waits for 250 ms
RING_BYTES = KernelSizes().calls_bytes
_STATES, _BUCKETS, _THREADS = 16, 64, 128
_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_TEST_RUN = 10
_PACKET = bytes(64)  # a test run of a tc program wants one


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The figures of one run. produced = written + lost_in_ring; read records are summed, `offered` of them stored."""

    wanted_per_s: int
    seconds: float
    produced: int
    lost_in_ring: int
    summed: int
    offered: int
    stored: int
    lost_in_queue: int
    cpu_percent: float

    @property
    def unaccounted(self) -> int:
        """Records that are neither summed nor counted as lost, and rows neither stored nor counted."""
        return abs(self.produced - self.summed - self.lost_in_ring) + abs(
            self.offered - self.stored - self.lost_in_queue
        )


class Sums:
    """The sums that the agent keeps of records without a row: counts and histograms by state, time by thread."""

    def __init__(self) -> None:
        self.histogram = np.zeros(_STATES * _BUCKETS, np.int64)
        self.thread_ns = np.zeros(_THREADS)

    def add(self, batch: np.ndarray[Any, Any]) -> None:
        """Adds drained records."""
        duration = (batch["end_ns"] - batch["start_ns"]).astype(np.float64)
        exponent = (duration.view(np.int64) >> 52) - 1022
        bucket = batch["state"].astype(np.int64) * _BUCKETS + np.clip(exponent, 0, _BUCKETS - 1)
        self.histogram += np.bincount(bucket, minlength=len(self.histogram))
        self.thread_ns += np.bincount(batch["tid"], duration, minlength=_THREADS)


class NoTracedProcesses:
    """Slots of no process: the records are made up."""

    def at(self, _slot: int) -> None:
        """No traced process has it."""


def compile_producer(folder: Path) -> Path:
    """The object of drain.bpf.c, compiled as the agent's own are."""
    sys.path.insert(0, str(BENCH.parent / "tools"))
    from build_bpf import ARCHITECTURES, FLAGS, compiler  # noqa: PLC0415 (tools/ is no package)

    output = folder / "drain.bpf.o"
    sources = Path(ingero.__file__).parent / "bpf"
    define = f"-D__TARGET_ARCH_{ARCHITECTURES[platform.machine()]}"
    command = [*compiler(), *FLAGS, define, f"-I{sources}", "-c", str(BENCH / "drain.bpf.c"), "-o", str(output)]
    subprocess.run(command, check=True)
    return output


def produce(fd: int, rate: int, seconds: float) -> None:
    """Runs the program in time for `rate` records a second; after a delay it catches up at twice the rate."""
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    packet = ctypes.create_string_buffer(_PACKET, len(_PACKET))
    layout = struct.pack("<IIIIQQII", fd, 0, len(_PACKET), 0, ctypes.addressof(packet), 0, 1, 0)
    attributes = ctypes.create_string_buffer(layout, 128)
    began = time.monotonic()
    for number in range(1, int(rate * seconds) // BURST + 1):
        if system_call(_SYS_BPF[platform.machine()], _BPF_PROG_TEST_RUN, attributes, len(attributes)):
            raise OSError(ctypes.get_errno(), "test run")
        ahead_s = began + number * BURST / rate - time.monotonic()
        time.sleep(max(ahead_s, BURST / rate / 2))


@contextmanager
def producing(fd: int, rate: int, seconds: float) -> Iterator[BaseProcess]:
    """`produce` in a process of its own, so that its CPU time is not the drainer's."""
    process = multiprocessing.get_context("fork").Process(target=produce, args=(fd, rate, seconds))
    process.start()
    try:
        yield process
    finally:
        process.join()
    if process.exitcode:
        raise SystemExit("the producer failed")


def write(rows: RowMaker, batch: np.ndarray[Any, Any]) -> None:
    """Writes the rows of a batch of threads without stacks."""
    rows.offcpu(batch, rows.process_numbers(batch["process_slot"]), batch["futex"], [0] * len(batch))


def read_until_end(process: BaseProcess, ring: Ring, rows: RowMaker, every: int) -> tuple[int, int]:
    """Reads the ring until the producer has ended; each `every`-th record becomes a row. Returns (summed, offered)."""
    sums, summed, offered = Sums(), 0, 0
    chosen: list[np.ndarray[Any, Any]] = []
    with select.epoll() as poll:
        poll.register(ring.fd, select.EPOLLIN | select.EPOLLET)
        is_over = False
        while not is_over:
            poll.poll(0.02)
            is_over = not process.is_alive()  # before the last drain, which then misses nothing
            while len(batch := ring.drain()):
                sums.add(batch)
                chosen.append(batch[-summed % every :: every])
                summed, offered = summed + len(batch), offered + len(chosen[-1])
                if sum(map(len, chosen)) >= ROWS_AT_ONCE:
                    write(rows, np.concatenate(chosen))
                    chosen.clear()
        if chosen:
            write(rows, np.concatenate(chosen))
    assert int(sums.histogram.sum()) == summed
    return summed, offered


def run(producer: BpfObject, folder: Path, *, rate: int, seconds: float, every: int) -> Result:
    """One run with a new database."""
    database = folder / f"{len(list(folder.glob('*.db')))}.db"
    layout = btf_of(object_path("layouts")).dtype("offcpu_record", header_bytes=8)
    totals = np.frombuffer(producer.maps["totals"].memory(), np.uint64, 2)
    before = totals.copy()
    clock = WallClock()
    clock.add_pair(*read_pair())
    facts = SessionFacts(uuid="bench", started_ns=time.time_ns())
    with Writer(database, session=facts, node="bench") as writer, Ring(producer.maps["records"], layout) as ring:
        traced_processes = cast(TracedProcesses, NoTracedProcesses())
        rows = RowMaker(
            writer,
            clock,
            traced_processes,
            name_of_pid=str,
            name_of_thread="t{}".format,
            cgroup_keys=writer.cgroup_keys,
            default_gpu=-1,
        )
        with producing(producer.program("produce").fd, rate, seconds) as process:
            began_s, cpu_s = time.monotonic(), time.process_time()
            summed, offered = read_until_end(process, ring, rows, every)
            elapsed_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        writer.flush()
        lost = sum(count for (table, _), count in writer.drops().items() if table == "raw_offcpu")
    written, lost_in_ring = (totals - before).tolist()
    with apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY) as db:
        stored = next(iter(db.execute("SELECT count(*) FROM raw_offcpu")))[0]
    return Result(
        wanted_per_s=rate,
        seconds=elapsed_s,
        produced=written + lost_in_ring,
        lost_in_ring=lost_in_ring,
        summed=summed,
        offered=offered,
        stored=stored,
        lost_in_queue=lost,
        cpu_percent=100 * cpu_s / elapsed_s,
    )


def show(title: str, result: Result) -> None:
    """Prints a run for people."""
    print(title)
    print(f"  produced       {result.produced:12,}   {result.produced / result.seconds:,.0f} a second")
    print(f"  summed         {result.summed:12,}")
    print(f"  lost in ring   {result.lost_in_ring:12,}")
    print(f"  offered        {result.offered:12,}   as rows, {result.offered / result.seconds:,.0f} a second")
    print(f"  stored         {result.stored:12,}")
    print(f"  lost in queue  {result.lost_in_queue:12,}")
    print(f"  unaccounted    {result.unaccounted:12,}   must be 0")
    print(f"  CPU            {result.cpu_percent:12.1f} % of a core", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=1_000_000, help="records a second (default 1,000,000)")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--short", action="store_true", help="half a second each, for tests")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(arguments)
    require_quiet_kernel()
    seconds = 0.5 if options.short else options.seconds
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        constants = {"records_bytes": struct.pack("<Q", RING_BYTES), "burst": struct.pack("<I", BURST)}
        path = compile_producer(folder)
        with BpfObject(path, constants=constants, max_entries={"records": RING_BYTES}) as producer:
            every = max(1, options.rate // ROWS_PER_S)
            sustained = run(producer, folder, rate=options.rate, seconds=seconds, every=every)
            beyond = run(producer, folder, rate=options.rate, seconds=seconds, every=1)
    if options.json:
        print(json.dumps({"sustained": asdict(sustained), "beyond_capacity": asdict(beyond)}))
        return
    show(f"{options.rate:,} records a second, {ROWS_PER_S:,} of them stored", sustained)
    show("the same, every record offered to the database", beyond)


if __name__ == "__main__":
    main()
