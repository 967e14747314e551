"""Control groups of the tests: a CPU quota, a freezer, a memory group, on hosts with v1 or v2 controllers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

QUOTA_US, PERIOD_US = 5000, 100000  # so little that it is used up on a busy machine, too


def mount_of(controller: str) -> Path | None:
    """The mount point of a v1 controller, or "cgroup2"; None if it is not mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == controller or (kind == "cgroup" and controller in options.split(",")):
            return Path(place)
    return None


@contextmanager
def group(controller: str) -> Iterator[Path]:
    """A new group of a v1 controller, or of the v2 hierarchy where it is not mounted."""
    root = mount_of(controller) or mount_of("cgroup2")
    assert root is not None, "no cgroup hierarchy is mounted"
    if mount_of(controller) is None:
        (root / "cgroup.subtree_control").write_text(f"+{controller}")
    folder = root / f"ingero-test-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        _empty(folder, root)
        folder.rmdir()


def _empty(folder: Path, root: Path) -> None:
    while pids := (folder / "cgroup.procs").read_text().split():
        for pid in pids:
            (root / "cgroup.procs").write_text(pid)


def add(folder: Path, pid: int) -> None:
    """Moves a process into a group."""
    (folder / "cgroup.procs").write_text(str(pid))


def set_quota(folder: Path) -> None:
    """Limits a group to a twentieth of one CPU."""
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(QUOTA_US))


def lift_quota(folder: Path) -> None:
    """Lets a group run again."""
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text("max")
    else:
        (folder / "cpu.cfs_quota_us").write_text("-1")


def throttled_ns(folder: Path) -> int:
    """The kernel's own count of a group's throttled time."""
    stat = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    return int(stat["throttled_time"]) if "throttled_time" in stat else int(stat["throttled_usec"]) * 1000
