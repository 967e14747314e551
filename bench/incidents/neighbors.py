"""Disturbances from outside the workload: other containers, other programs, other file systems; some are harmless."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ingero.demo.faults import cgroups
from ingero.demo.faults.cpu import CpuHog
from ingero.demo.faults.disk import IoStorm
from ingero.demo.faults.model import Injection, Recipe, Workload, WorkloadSetup
from ingero.demo.faults.network import TcpLoss
from ingero.demo.workloads.program import Program
from ingero.demo.workloads.slow_mount import FILE_NAME, unmount

_CLIENT = """
import socket, sys, time
from ingero.demo.workloads import store
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("ready", file=sys.stderr, flush=True)
while True:
    store.fetch(connection, 256 << 10)
    time.sleep(0.02)
"""


class NoisyNeighbor(Recipe):
    """Hogs in a container beside the one that the workload runs in."""

    def __init__(self, hog: CpuHog) -> None:
        self._hog = hog
        self._next_door: Path | None = None

    def requires(self) -> str | None:
        """Require the controller whose cgroups identify containers."""
        return cgroups.missing("memory")

    @contextmanager
    def prepare(self, scratch: Path) -> Iterator[WorkloadSetup]:
        """Make both containers."""
        del scratch
        with _container() as own, _container() as next_door:
            self._next_door = next_door
            yield WorkloadSetup(cgroups=(own,))

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Run the hogs next door."""
        assert self._next_door is not None
        with self._hog.apply(workload) as injection:
            for pid in injection.culprits:
                (self._next_door / "cgroup.procs").write_text(str(pid))
            yield injection


@contextmanager
def _container() -> Iterator[Path]:
    """A group named as Docker names one."""
    found = cgroups.hierarchy("memory")
    assert found is not None
    docker = found.root / "docker"
    path = docker / secrets.token_hex(32)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        _remove(path, found.root)
        if not any(one.is_dir() for one in docker.iterdir()):
            docker.rmdir()


def _remove(path: Path, root: Path) -> None:
    while pids := (path / "cgroup.procs").read_text().split():
        for pid in pids:
            try:
                (root / "cgroup.procs").write_text(pid)
            except ProcessLookupError:
                time.sleep(0.01)  # it is ending
    path.rmdir()


class SecondProgram(Recipe):
    """Another training process on the same device, with long kernels that cost the host hardly anything."""

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Train beside it."""
        environment = dict(_environment_of(workload.pid))
        arguments = ("--seconds", 120, "--layers", 1, "--us", 2000, "--workers", 0, "--cpu-ms", 0, "--out", "/dev/null")
        with Program.module("train", *arguments, environment=environment) as other:
            other.wait_for("ready")
            yield Injection(culprits=(other.pid,))


def _environment_of(pid: int) -> Iterator[tuple[str, str]]:
    for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
        name, separator, value = one.decode().partition("=")
        if separator:
            yield name, value


class UnrelatedWriters(Recipe):
    """A writer of the I/O storm beside a workload that reads nothing; a fifth of the time, for they need CPUs."""

    def __init__(self, *, writers: int = 1, duty: float = 0.2) -> None:
        self._storm = IoStorm(writers=writers, duty=duty)

    def requires(self) -> str | None:
        """Require what the storm of I/O requires."""
        return self._storm.requires()

    @contextmanager
    def prepare(self, scratch: Path) -> Iterator[WorkloadSetup]:
        """Prepare the files; the workload does not get to know them."""
        with self._storm.prepare(scratch):
            yield WorkloadSetup()

    def apply(self, workload: Workload) -> AbstractContextManager[Injection]:
        """Write."""
        return self._storm.apply(workload)


class UnrelatedRetransmits(Recipe):
    """A lossy network that another process fetches over."""

    def __init__(self) -> None:
        self._loss = TcpLoss()
        self._address: Sequence[str] = ()

    def requires(self) -> str | None:
        """Require what the lossy network requires."""
        return self._loss.requires()

    @contextmanager
    def prepare(self, scratch: Path) -> Iterator[WorkloadSetup]:
        """Connect the store; the workload does not get to know it."""
        with self._loss.prepare(scratch) as setup:
            self._address = setup.arguments[1].rsplit(":", 1)
            yield WorkloadSetup()

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Fetch and lose."""
        with Program([sys.executable, "-c", _CLIENT, *self._address]) as client:
            client.wait_for("ready")
            with self._loss.apply(workload):
                yield Injection(culprits=(client.pid,))


class SlowMount(Recipe):
    """The workers read from a file system in user space, whose every megabyte takes `ms_per_mib` for a while."""

    def __init__(self, ms_per_mib: float) -> None:
        self._ms_per_mib = ms_per_mib
        self._knob: Path | None = None

    def requires(self) -> str | None:
        """Root, and a kernel with FUSE."""
        return None if os.geteuid() == 0 and Path("/dev/fuse").exists() else "mounting needs root and /dev/fuse"

    @contextmanager
    def prepare(self, scratch: Path) -> Iterator[WorkloadSetup]:
        """Mount it, fast for now."""
        folder = scratch / "mount"
        folder.mkdir()
        self._knob = scratch / "mount.knob"
        try:
            with Program.module("slow_mount", folder, "--knob", self._knob) as server:
                server.wait_for("ready")
                yield WorkloadSetup(arguments=("--data", str(folder / FILE_NAME), "--buffered", "--cpu-ms", "0.5"))
        finally:
            unmount(folder)

    @contextmanager
    def apply(self, workload: Workload) -> Iterator[Injection]:
        """Slow it down."""
        del workload
        assert self._knob is not None
        self._knob.write_text(str(self._ms_per_mib))
        try:
            yield Injection()
        finally:
            self._knob.unlink()
