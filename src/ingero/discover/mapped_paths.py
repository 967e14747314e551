"""A path by which the agent reads the very file that a process has mapped."""

from __future__ import annotations

import enum
import os
from pathlib import Path

from ingero.discover.mappings import Mapping
from ingero.discover.rooted import status_in_root


class Reach(enum.IntEnum):
    """How the agent reaches a copy; the lower, the longer the path lasts."""

    PLAIN = 0  # the path that the process itself names
    PROCESS_ROOT = 1  # /proc/PID/root/...
    MAP_FILES = 2  # /proc/PID/map_files/...


def reachable_path(process: Path, mapped: Mapping) -> tuple[Path, Reach]:
    """A path by which the agent reads the very file that a process has mapped.

    process: its /proc folder.

    Raises:
        OSError: there is none; for a deleted file CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN may be missing.
    """
    map_file = process / "map_files" / mapped.range_name
    truth = _stat(map_file)
    inodes = {mapped.inode} | ({truth.st_ino} if truth else set())
    # A file may really be called "... (deleted)".
    for name in (mapped.path, f"{mapped.path} (deleted)") if mapped.is_deleted else (mapped.path,):
        inside = process / "root" / name.lstrip("/")
        outside = Path(name)
        seen_inside, seen_outside = _stat_inside(process / "root", name), _stat(outside)
        witnesses = [status for status in (truth, seen_inside) if status is not None and status.st_ino in inodes]
        if seen_outside is not None and any(os.path.samestat(seen_outside, witness) for witness in witnesses):
            return outside, Reach.PLAIN
        if seen_inside is not None and seen_inside.st_ino in inodes:
            return inside, Reach.PROCESS_ROOT
    map_file.stat()  # raises the reason why the last way is closed, too
    return map_file, Reach.MAP_FILES


def _stat_inside(root: Path, name: str) -> os.stat_result | None:
    try:
        return status_in_root(root, name)
    except OSError:
        return None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
