"""Own cgroups below the root, on machines with the v1 or the v2 hierarchy, and processes in and out of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ingero.demo.faults.model import FaultError

_MOUNTS = Path("/proc/self/mountinfo")
UNLIMITED = -1
DEFAULT_WEIGHT_V2 = 100
_REMOVAL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """The mount point of a controller, and whether it is cgroup v2."""

    root: Path
    is_v2: bool


def hierarchy(controller: str) -> Hierarchy | None:
    """Return the mounted hierarchy that has this controller (`cpu`, `memory`), None if there is none."""
    for line in _MOUNTS.read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        root = Path(fields.split()[4])
        if kind == "cgroup" and controller in options.split(","):
            return Hierarchy(root=root, is_v2=False)
        if kind == "cgroup2" and controller in _words(root / "cgroup.controllers"):
            return Hierarchy(root=root, is_v2=True)
    return None


def missing(controller: str) -> str | None:
    """Return why no cgroup with this controller can be made here, None if it can."""
    if os.geteuid() != 0:
        return "making a cgroup needs root"
    found = hierarchy(controller)
    if found is None:
        return f"no cgroup hierarchy with the {controller} controller is mounted"
    return None if os.access(found.root, os.W_OK) else f"{found.root} is read-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One cgroup that was made here."""

    path: Path
    is_v2: bool

    def add(self, pid: int) -> None:
        """Move a process here."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def set_cpu_limit(self, quota_us: int, period_us: int = 100_000) -> None:
        """Allow `quota_us` of CPU time in each period, or UNLIMITED."""
        if self.is_v2:
            (self.path / "cpu.max").write_text(f"{'max' if quota_us == UNLIMITED else quota_us} {period_us}")
            return
        (self.path / "cpu.cfs_period_us").write_text(str(period_us))
        (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))

    def cpu_weight(self) -> int:
        """Return its weight against its neighbors: cpu.weight, or cpu.shares in v1; the root of v2 has none."""
        path = self._weight
        return int(path.read_text()) if path.exists() else DEFAULT_WEIGHT_V2

    def set_cpu_weight(self, weight: int) -> None:
        """Change it."""
        self._weight.write_text(str(weight))

    @property
    def _weight(self) -> Path:
        return self.path / ("cpu.weight" if self.is_v2 else "cpu.shares")

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Limit the memory to this number of bytes, or UNLIMITED.

        Raises:
            OSError: v1 cannot reclaim enough to get below the limit (EBUSY).
        """
        if self.is_v2:
            (self.path / "memory.max").write_text("max" if limit_bytes == UNLIMITED else str(limit_bytes))
            return
        (self.path / "memory.limit_in_bytes").write_text(str(limit_bytes))

    def memory_bytes(self) -> int:
        """Return what is charged to the group, page cache included."""
        return int((self.path / ("memory.current" if self.is_v2 else "memory.usage_in_bytes")).read_text())

    def anonymous_bytes(self) -> int:
        """Return the part that cannot be dropped without swap."""
        return self.counter("memory.stat", "anon" if self.is_v2 else "rss")

    def counter(self, file: str, name: str) -> int:
        """Return one value of a flat-keyed file such as cpu.stat."""
        values = dict(line.split() for line in (self.path / file).read_text().splitlines())
        return int(values[name])

    def throttled_periods(self) -> int:
        """Return in how many periods the quota ran out."""
        return self.counter("cpu.stat", "nr_throttled")

    def limit_hits(self) -> int:
        """Return how often memory was reclaimed because of the limit."""
        if self.is_v2:
            return self.counter("memory.events", "max")
        return int((self.path / "memory.failcnt").read_text())

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed here for want of memory."""
        return self.counter("memory.events" if self.is_v2 else "memory.oom_control", "oom_kill")


@contextlib.contextmanager
def group(controller: str, label: str) -> Iterator[Group]:
    """Make a cgroup below the root, named after this process; at the end, move who is left to the root, and remove it.

    Raises:
        FaultError: it cannot be made here.
    """
    reason = missing(controller)
    found = hierarchy(controller)
    if reason or found is None:
        raise FaultError(reason or controller, hint="run as root on a host with cgroups, not inside a container")
    path = found.root / f"ingero-{label}-{os.getpid()}"
    if found.is_v2:
        (found.root / "cgroup.subtree_control").write_text(f"+{controller}")
    path.mkdir()
    try:
        yield Group(path=path, is_v2=found.is_v2)
    finally:
        _remove(path, found.root)


def group_of(pid: int, controller: str) -> Group:
    """Return the group that a process is in.

    Raises:
        FaultError: no hierarchy has this controller.
    """
    found = hierarchy(controller)
    if found is None:
        raise FaultError(f"no cgroup hierarchy with the {controller} controller is mounted")
    return Group(path=found.root / _membership(pid, controller, is_v2=found.is_v2), is_v2=found.is_v2)


@contextlib.contextmanager
def moved(pids: list[int], into: Group, controller: str) -> Iterator[None]:
    """Keep processes in a group inside the with-block, then move each back to where it was."""
    found = hierarchy(controller)
    assert found is not None
    origins = {pid: found.root / _membership(pid, controller, is_v2=into.is_v2) for pid in pids}
    for pid in pids:
        into.add(pid)
    try:
        yield
    finally:
        for pid, origin in origins.items():
            _enter(pid, origin)


def _membership(pid: int, controller: str, *, is_v2: bool) -> str:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if (is_v2 and not controllers) or controller in controllers.split(","):
            return path.lstrip("/")
    return ""


def _enter(pid: int, origin: Path) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        (origin / "cgroup.procs").write_text(str(pid))


def _remove(path: Path, root: Path) -> None:
    """Remove a group; ended processes leave it only when they are reaped, hence the second tries."""
    for pid in _words(path / "cgroup.procs"):
        _enter(int(pid), root)
    deadline = time.monotonic() + _REMOVAL_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            path.rmdir()
            return
        time.sleep(0.01)
    path.rmdir()


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []
