"""Real host event programs, a process table that tests fill, and processes to trace."""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingero.attach.host_events import HostEvents
from ingero.attach.libbpf import Map
from ingero.attach.objects import object_path
from ingero.decode.btf import btf_of

WORKLOAD = Path(__file__).with_name("workload.py")
_BUSY, _DISCARDED, _LENGTH_MASK = 1 << 31, 1 << 30, (1 << 30) - 1


class Ring:
    """Reads a BPF ring buffer (layout: Linux Documentation/bpf/ringbuf.rst) of records of one type."""

    def __init__(self, ring: Map, dtype: np.dtype[Any]) -> None:
        self._dtype, self._size = dtype, ring.max_entries
        self._consumer = mmap.mmap(ring.fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        pages = mmap.PAGESIZE + 2 * ring.max_entries
        self._data = mmap.mmap(ring.fd, pages, mmap.MAP_SHARED, mmap.PROT_READ, offset=mmap.PAGESIZE)

    def read(self) -> np.ndarray[Any, Any]:
        """The records since the last call."""
        position, found = struct.unpack_from("<Q", self._consumer)[0], []
        while position < struct.unpack_from("<Q", self._data)[0]:
            at = mmap.PAGESIZE + position % self._size
            header = struct.unpack_from("<I", self._data, at)[0]
            assert not header & _BUSY
            length = header & _LENGTH_MASK
            if not header & _DISCARDED:
                assert length == self._dtype.itemsize
                found.append(self._data[at + 8 : at + 8 + length])
            position += 8 + (length + 7 & ~7)
        struct.pack_into("<Q", self._consumer, 0, position)
        return np.frombuffer(b"".join(found), self._dtype)


class Tracer:
    """The attached programs and what they said."""

    def __init__(self, events: HostEvents) -> None:
        self.events = events
        layouts = btf_of(object_path("layouts"))
        self.kinds, self.drops_by_name = layouts.enum("host_kind"), layouts.enum("drop")
        self.lifecycle_kinds, self.flags = layouts.enum("lifecycle_kind"), layouts.enum("host_flag")
        self._host = Ring(events.maps["host"], layouts.dtype("host_record"))
        self._lifecycle = Ring(events.maps["lifecycle"], layouts.dtype("lifecycle_record"))
        self._total, self._process = layouts.dtype("host_total"), layouts.dtype("process")
        self._slots: dict[int, int] = {}
        self._records = [self._host.read()]
        self._events = [self._lifecycle.read()]

    def track(self, pid: int) -> None:
        """Traces a process."""
        slot = self._slots[pid] = len(self._slots)
        self.events.maps["targets"].update(struct.pack("<I", pid), struct.pack("<I", slot))

    def records(self, *kinds: str) -> np.ndarray[Any, Any]:
        """All host records so far, of these kinds."""
        self._records.append(self._host.read())
        found = np.concatenate(self._records)
        return found[np.isin(found["kind"], [self.kinds[f"HOST_{kind}"] for kind in kinds])] if kinds else found

    def lifecycle(self, kind: str) -> np.ndarray[Any, Any]:
        """All lifecycle records of a kind so far."""
        self._events.append(self._lifecycle.read())
        found = np.concatenate(self._events)
        return found[found["kind"] == self.lifecycle_kinds[f"LIFECYCLE_{kind}"]]

    def total(self, kind: str) -> np.void:
        """The exact sums of a kind."""
        raw = self.events.maps["host_totals"].lookup(struct.pack("<I", self.kinds[f"HOST_{kind}"]))
        assert raw is not None
        return np.frombuffer(raw, self._total)[0]

    def process(self, pid: int) -> np.void:
        """The sums of a traced process."""
        raw = self.events.maps["processes"].lookup(struct.pack("<I", self._slots[pid]))
        assert raw is not None
        return np.frombuffer(raw, self._process)[0]

    def drops(self) -> dict[str, int]:
        """The counters of losses that are not zero."""
        counts = ((name, self.events.maps["drops"].lookup(struct.pack("<I", i))) for name, i in self._drop_indices())
        return {name: number for name, raw in counts if raw and (number := struct.unpack("<Q", raw)[0])}

    def _drop_indices(self) -> Iterator[tuple[str, int]]:
        return ((name, index) for name, index in self.drops_by_name.items() if name != "DROP_COUNT")


class Workload:
    """A process of `workload.py`, ready to begin."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.pid = process, process.pid
        assert self.line() == "ready"

    def line(self) -> str:
        """The next line it prints; empty at its end."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def begin(self) -> None:
        """Lets it work."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, int]:
        """Waits for its result."""
        found: dict[str, int] = json.loads(self.line())
        return found

    def run(self) -> dict[str, int]:
        """Lets it work and waits for its result."""
        self.begin()
        return self.result()


@pytest.fixture(scope="session", autouse=True)
def _can_trace() -> None:
    if os.geteuid() != 0:
        pytest.skip("loading BPF programs needs root")


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    """What a test made is undone in the reverse order: a process ends before its cgroup is removed."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def attach(cleanup: ExitStack) -> Callable[..., Tracer]:
    """Attaches all host event programs; `slow_ns` is the threshold for processes that are no target."""
    return lambda **options: Tracer(cleanup.enter_context(HostEvents({}, **options)))


@pytest.fixture
def tracer(attach: Callable[..., Tracer]) -> Tracer:
    """Records traced processes only: the threshold for others is an hour."""
    return attach(slow_ns=3_600_000_000_000)


@pytest.fixture
def workload(cleanup: ExitStack) -> Callable[..., Workload]:
    """Starts a workload by name; `prefix` is put before the command, `cgroup` is entered first."""

    def start(name: str, *arguments: object, prefix: tuple[str, ...] = (), cgroup: Path | None = None) -> Workload:
        command = [*prefix, sys.executable, "-I", str(WORKLOAD), name, *map(str, arguments)]
        if cgroup is not None:
            command = ["/bin/sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"', str(cgroup), *command]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cleanup.enter_context(process)
        cleanup.callback(process.kill)
        return Workload(process)

    return start


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """A file of 16 MiB on a block device, with all its blocks allocated and written."""
    path = Path(os.environ.get("INGERO_TEST_DISK", tmp_path)) / "data"
    with path.open("wb") as file:
        file.write(os.urandom(16 << 20))
        file.flush()
        os.fsync(file.fileno())
    if os.major(path.stat().st_dev) == 0:
        pytest.skip(f"{path.parent} is not on a block device: set INGERO_TEST_DISK to a directory that is")
    return path


def _own_memory_cgroup() -> tuple[Path, str]:
    """Directory of this process's memory cgroup and the name of its limit file."""
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.limit_in_bytes"
    return Path("/sys/fs/cgroup"), "memory.max"


@pytest.fixture
def memory_cgroup(cleanup: ExitStack) -> Callable[[int], Path]:
    """Makes a memory cgroup with a limit in bytes."""

    def make(limit_bytes: int) -> Path:
        parent, limit = _own_memory_cgroup()
        directory = parent / f"ingero-test-{os.getpid()}"
        directory.mkdir()
        cleanup.callback(directory.rmdir)
        if not (directory / limit).exists():
            pytest.skip(f"{parent} does not delegate the memory controller")
        (directory / limit).write_text(str(limit_bytes), encoding="ascii")
        return directory

    return make


@pytest.fixture
def namespace(cleanup: ExitStack) -> str:
    """A network namespace with its loopback up."""
    name = f"ingero-test-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    cleanup.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
    subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
    return name
