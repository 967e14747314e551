"""Which kind of file system a file lies on."""

from __future__ import annotations

import os
from pathlib import Path

from ingero.discover.processes import PROC

_LAYERS = "overlay"  # of images; what is written into it goes with its container


def file_system_of(path: Path, proc: Path = PROC) -> str:
    """Its type as the kernel names it, such as ext4; "" where that cannot be told."""
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


def goes_with_its_container(path: Path, proc: Path = PROC) -> bool:
    """Whether a file lies in a container's own layers, and not in anything that was mounted into it."""
    return file_system_of(path, proc) == _LAYERS
