"""The type of file system that a file is on, and FUSE mounts that only their user may read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.processes import PROC
from ingero.foreign_text import decoded

_MAX_MOUNTINFO_BYTES = 4 << 20  # of thousands of mounts
_LAYERS = "overlay"  # of images; what is written into it goes with its container


def file_system_of(path: Path, proc: Path = PROC) -> str:
    """The type of a path's file system as the kernel names it, such as ext4; "" if unknown."""
    try:
        device = path.stat().st_dev
        mounts = (proc / "self/mountinfo").read_text(errors="replace")
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            return kind.split(" ", 1)[0]
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMount:
    """A FUSE mount that only its user may read, not even root. place: as its processes see it."""

    place: str
    kind: str

    @property
    def reason(self) -> str:
        """Why a file on it cannot be read."""
        return f"it lies on {self.place}, a {self.kind} mount that only the user who mounted it may read, not even root"

    @property
    def way_out(self) -> str:
        """The fix for that."""
        return (
            "mount it with -o allow_root (user_allow_other in /etc/fuse.conf), copy the library to a local disk, "
            "or start an AppImage with --appimage-extract-and-run"
        )


def kept_mount(pid: int, device: int, proc: Path = PROC) -> KeptMount | None:
    """The FUSE mount of a process with a device number; None if it is another file system.

    Source: fuse_allow_current_process() in fs/fuse/dir.c: without allow_other only the user of the mount gets in, and
    allow_root is libfuse's own.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with (proc / str(pid) / "mountinfo").open("rb") as file:
            mounts = decoded(file.read(_MAX_MOUNTINFO_BYTES), most=_MAX_MOUNTINFO_BYTES)
    except OSError:
        return None
    for line in mounts.splitlines():
        mount, _, file_system = line.partition(" - ")
        fields, kind = mount.split(" "), file_system.split(" ", 1)[0]
        if len(fields) > 4 and fields[2] == number and (kind.partition(".")[0] in ("fuse", "fuseblk")):
            return KeptMount(place=fields[4], kind=f"FUSE ({kind})")
    return None


def goes_with_its_container(path: Path, proc: Path = PROC) -> bool:
    """Whether a file lies in a container's own layers, not in a volume mounted into it."""
    return file_system_of(path, proc) == _LAYERS
