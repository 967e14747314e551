"""Cgroups with the names that container runtimes use, in the hierarchy whose ids are recorded."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from ingero.discover.cgroups import read_mounts


def docker_path() -> tuple[str, str]:
    """A container id and the path of its group, as Docker's cgroupfs driver makes it."""
    container = secrets.token_hex(32)
    return container, f"/docker/{container}"


@contextlib.contextmanager
def group(path: str) -> Iterator[Path]:
    """A group at this path; what is left in it goes to the root's when the block ends."""
    mounts = read_mounts()
    top = mounts.folder(mounts.identifying, "/")
    assert top is not None, "no cgroup hierarchy is mounted"
    folder = top / path.lstrip("/")
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        _remove(folder, top)


def _remove(folder: Path, top: Path) -> None:
    while pids := (folder / "cgroup.procs").read_text().split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (top / "cgroup.procs").write_text(pid)
        time.sleep(0.01)  # one that is ending leaves by itself
    while folder != top:
        try:
            folder.rmdir()
        except OSError:  # others' groups are in it
            break
        folder = folder.parent
