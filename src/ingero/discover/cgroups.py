"""The cgroup of a process: its id as the BPF programs see it, its CPU limits, and its throttling."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.processes import PROC

_ABOVE = re.compile(r"(/\.\.)+")
_UNIFIED = ""  # the name of the v2 hierarchy in /proc/PID/cgroup
_US = 1000


@dataclass(frozen=True, slots=True)
class _HierarchyMount:
    """A mounted cgroup hierarchy: `root` is the cgroup that `point` shows.

    own: the group of this process in it, where a control group namespace says paths relative to that; else "".
    """

    root: str
    point: Path
    own: str = ""

    def absolute(self, path: str) -> str:
        """The path from the root of the hierarchy."""
        return posixpath.normpath(f"{self.own}{path}") if self.own else path

    def folder(self, path: str) -> Path | None:
        """The folder of a cgroup; None if it lies outside what is mounted here (another cgroup namespace)."""
        if self.root not in ("/", path) and not path.startswith(f"{self.root}/"):
            return None
        inside = path if self.root == "/" else path[len(self.root) :]
        return None if "/.." in inside else self.point / inside.lstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupMounts:
    """Mounts of the cgroup hierarchies: controller name -> mount, and "" -> the v2 hierarchy."""

    by_controller: Mapping[str, _HierarchyMount]

    @property
    def identifying(self) -> str:
        """The hierarchy whose ids identify cgroups: memory if it is a v1 controller, else v2 ("").

        On hosts that mount both, services often share one v2 group while v1 tells them apart.
        """
        return "memory" if "memory" in self.by_controller else _UNIFIED

    def absolute(self, controller: str, path: str) -> str:
        """A path of /proc/PID/cgroup as it is from the root of the hierarchy, as far as that can be known here."""
        mount = self.by_controller.get(controller)
        return mount.absolute(path) if mount else path

    def folder(self, controller: str, path: str) -> Path | None:
        """The folder of a cgroup in one hierarchy, if that is mounted and shows the cgroup."""
        mount = self.by_controller.get(controller)
        return mount.folder(path) if mount else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """The cgroups of one process.

    id: of the group in the identifying hierarchy, the inode of its folder; None where that is not visible.
    path: of the group in that hierarchy.
    paths: controller (or "" for v2) -> path.
    """

    id: int | None
    path: str
    paths: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimits:
    """CPU limits of a cgroup. None: no limit known.

    quota_cores: CPU time per wall time, in cores; the lowest on the way up to the root.
    quota_path: the group that sets it.
    cpus: the CPUs it may run on.
    """

    quota_cores: float | None
    quota_path: str | None
    cpus: frozenset[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuShare:
    """CPU weight and quota of a cgroup. None: not set, or not visible here.

    weight: relative to sibling cgroups, 100 by default; v1 shares are converted as the kernel does.
    quota_us: CPU time that all of a group may use in each period_us of wall time.
    """

    weight: int | None
    quota_us: int | None
    period_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IoLimit:
    """One I/O limit of a cgroup. device: major:minor; limit: as in `io.max`, such as rbps=1000; path: the cgroup's."""

    device: str
    limit: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttling:
    """How often and how long a cgroup was throttled by its CPU quota, since it was created."""

    throttled_periods: int
    throttled_ns: int


_MAX_IO_LIMITS = 32  # of a group and those around it
_IO_V1 = {
    "rbps": "blkio.throttle.read_bps_device",
    "wbps": "blkio.throttle.write_bps_device",
    "riops": "blkio.throttle.read_iops_device",
    "wiops": "blkio.throttle.write_iops_device",
}


def read_mounts(proc: Path = PROC) -> CgroupMounts:
    """The hierarchies that this process sees mounted."""
    found: dict[str, _HierarchyMount] = {}
    for line in _text(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        mount = _seen_from_its_root(_unescape(fields[3]), Path(_unescape(fields[4])))
        names = [_UNIFIED] if kind[0] == "cgroup2" else kind[2].split(",")
        for name in names:
            found.setdefault(name, mount)
    return CgroupMounts(by_controller=found)


def _seen_from_its_root(root: str, point: Path) -> _HierarchyMount:
    """Corrects the root of a mount seen from a cgroup namespace whose root lies below the host's (`/../..`).

    How many groups deep this process is is known by it, but not their names: it is looked for.
    """
    if not _ABOVE.fullmatch(root):
        return _HierarchyMount(root, point)
    level = [point]
    for _ in range(root.count("/")):
        level = [Path(entry.path) for folder in level for entry in _subfolders(folder)]
    me = str(os.getpid())
    own = next((folder for folder in level if me in _text(folder / "cgroup.procs").split()), None)
    return (
        _HierarchyMount(root, point)
        if own is None
        else _HierarchyMount("/", point, f"/{_printable(str(own.relative_to(point)))}")
    )


def read_cgroup(pid: int, mounts: CgroupMounts, proc: Path = PROC) -> Cgroup | None:
    """The cgroups of a process, or None if it is gone."""
    paths = {
        name: mounts.absolute(name, path) for name, path in parse_cgroup(_text(proc / str(pid) / "cgroup")).items()
    }
    if not paths:
        return None
    path = paths.get(mounts.identifying, "/")
    folder = mounts.folder(mounts.identifying, path)
    return Cgroup(id=_inode(folder), path=path, paths=paths)


def find_cgroups(ids: Collection[int], mounts: CgroupMounts) -> dict[int, Cgroup]:
    """The cgroups of the identifying hierarchy with these ids, if they exist and are visible here."""
    mount = mounts.by_controller.get(mounts.identifying)
    found: dict[int, Cgroup] = {}
    folders = [(mount.point, mount.root)] if mount else []
    if mount and _inode(mount.point) in ids:
        found[_inode(mount.point) or 0] = _identify_cgroup(mount.root, _inode(mount.point), mounts)
    while folders and len(found) < len(ids):
        folder, path = folders.pop()
        for entry in _subfolders(folder):
            inside = f"{path.rstrip('/')}/{_printable(entry.name)}"
            if entry.inode() in ids:
                found[entry.inode()] = _identify_cgroup(inside, entry.inode(), mounts)
            folders.append((Path(entry.path), inside))
    return found


def members(cgroup: Cgroup, mounts: CgroupMounts) -> list[int]:
    """The pids in a cgroup now, unordered."""
    folder = mounts.folder(mounts.identifying, cgroup.path)
    return [int(line) for line in _text(folder / "cgroup.procs").split() if line.isdigit()] if folder else []


def _identify_cgroup(path: str, number: int | None, mounts: CgroupMounts) -> Cgroup:
    return Cgroup(id=number, path=path, paths={mounts.identifying: path})


def _subfolders(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # removed meanwhile
        return []


def parse_cgroup(text: str) -> dict[str, str]:
    """Controller -> path of a /proc/PID/cgroup text; the v2 path stands under ""."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number.isdigit() and path.startswith("/"):
            for controller in controllers.split(","):
                paths.setdefault(controller, _printable(path.removesuffix(" (deleted)")))
    return paths


def read_cpu_limits(cgroup: Cgroup, mounts: CgroupMounts) -> CpuLimits:
    """The CPU limits of a cgroup, inherited ones included."""
    lowest: tuple[float, str] | None = None
    for folder, path in _upwards(cgroup, mounts, "cpu"):
        cores = _quota_cores(folder)
        if cores is not None and (lowest is None or cores < lowest[0]):
            lowest = (cores, path)
    quota_cores, quota_path = lowest if lowest else (None, None)
    return CpuLimits(quota_cores=quota_cores, quota_path=quota_path, cpus=_cpus(cgroup, mounts))


def read_cpu_share(cgroup: Cgroup, mounts: CgroupMounts) -> CpuShare:
    """The CPU share in effect: the nearest weight, and the tightest quota on the way up to the root."""
    weight: int | None = None
    tightest: tuple[int, int] | None = None
    for folder, _ in _upwards(cgroup, mounts, "cpu"):
        weight = _weight(folder) if weight is None else weight
        quota = _quota(folder)
        if quota and (tightest is None or quota[0] * tightest[1] < tightest[0] * quota[1]):
            tightest = quota
    quota_us, period_us = tightest or (None, None)
    return CpuShare(weight=weight, quota_us=quota_us, period_us=period_us)


def read_io_limits(cgroup: Cgroup, mounts: CgroupMounts) -> tuple[IoLimit, ...]:
    """The I/O limits of a cgroup per block device: its own and those of its parents."""
    found: list[IoLimit] = []
    for folder, path in _upwards(cgroup, mounts, "io" if "io" in mounts.by_controller else "blkio"):
        for line in _text(folder / "io.max").splitlines():  # v2: "8:0 rbps=1000 wbps=max riops=max wiops=max"
            device, *limits = line.split()
            set_ones = [one for one in limits if not one.endswith("=max")]
            found += [IoLimit(device=device, limit=one, path=path) for one in set_ones]
        for name, file in _IO_V1.items():
            lines = (line.split() for line in _text(folder / file).splitlines())
            mine = (words for words in lines if len(words) == 2)  # "8:0 1000"; others are totals
            found += [IoLimit(device=words[0], limit=f"{name}={words[1]}", path=path) for words in mine]
    return tuple(found[:_MAX_IO_LIMITS])


def cpu_stat_file(cgroup: Cgroup, mounts: CgroupMounts) -> Path | None:
    """The path of the `cpu.stat` of a cgroup; None if not visible."""
    folder = next(iter(_upwards(cgroup, mounts, "cpu")), None)
    return folder[0] / "cpu.stat" if folder else None


def read_throttling(cpu_stat: Path) -> Throttling | None:
    """Reads a `cpu.stat`; None if the cgroup is gone or has no CPU controller."""
    pairs = (line.split() for line in _text(cpu_stat).splitlines())
    values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    if "nr_throttled" not in values:
        return None
    # v1 calls it throttled_time and counts ns, v2 throttled_usec.
    throttled_ns = values.get("throttled_time", values.get("throttled_usec", 0) * _US)
    return Throttling(throttled_periods=values["nr_throttled"], throttled_ns=throttled_ns)


def frozen_by(cgroup: Cgroup, mounts: CgroupMounts) -> Path | None:
    """The file through which a cgroup was frozen, as by `docker pause`; None if it is not.

    Source: cgroup.freeze in Documentation/admin-guide/cgroup-v2.rst, freezer.state in cgroup-v1/freezer-subsystem.rst.
    """
    for folder, _ in _upwards(cgroup, mounts, "freezer") + _upwards(cgroup, mounts, _UNIFIED):
        if _text(folder / "cgroup.freeze") == "1":
            return folder / "cgroup.freeze"
        if _text(folder / "freezer.self_freezing") == "1":
            return folder / "freezer.state"
    return None


def parse_cpu_list(text: str) -> frozenset[int]:
    """The CPUs of a list such as `0-3,8`."""
    cpus: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _upwards(cgroup: Cgroup, mounts: CgroupMounts, controller: str) -> list[tuple[Path, str]]:
    """The folders of a cgroup in a controller's hierarchy, from itself to the root, with their paths."""
    name = controller if controller in mounts.by_controller else _UNIFIED
    path = cgroup.paths.get(name)
    steps: list[tuple[Path, str]] = []
    while path is not None:
        folder = mounts.folder(name, path)
        if folder is None:
            break
        steps.append((folder, path))
        path = (path.rsplit("/", 1)[0] or "/") if path != "/" else None
    return steps


def _weight(folder: Path) -> int | None:
    text = _text(folder / "cpu.weight")
    if text.isdigit():
        return int(text)
    shares = _text(folder / "cpu.shares")  # v1: 1024 is what weight 100 is
    return max(1, round(int(shares) * 100 / 1024)) if shares.isdigit() else None


def _quota_cores(folder: Path) -> float | None:
    quota = _quota(folder)
    return quota[0] / quota[1] if quota else None


def _quota(folder: Path) -> tuple[int, int] | None:
    """The CPU quota of a folder: time and period, us."""
    limit = _text(folder / "cpu.max").split()  # v2: "QUOTA PERIOD" in us, QUOTA may be "max"
    if not limit:
        limit = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]  # v1: -1 is no limit
    if len(limit) != 2 or not all(part.isdigit() for part in limit) or int(limit[1]) == 0:
        return None
    return int(limit[0]), int(limit[1])


def _cpus(cgroup: Cgroup, mounts: CgroupMounts) -> frozenset[int] | None:
    for folder, _ in _upwards(cgroup, mounts, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            text = _text(folder / name)
            if text:
                return parse_cpu_list(text)
    return None


def _inode(folder: Path | None) -> int | None:
    try:
        return os.stat(folder).st_ino if folder else None  # noqa: PTH116 - one call, not two for None
    except OSError:
        return None


def _unescape(field: str) -> str:
    r"""A field of mountinfo, where blanks stand as `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _printable(path: str) -> str:
    """A path as a database can store it: names of cgroups may hold any byte."""
    return path.encode("utf-8", "backslashreplace").decode()


def _text(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except OSError:
        return ""
