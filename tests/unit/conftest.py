"""Puts the databases of unit tests into memory where there is room, and removes the time limits of properties."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 1 << 30  # a run leaves a tenth of it; a container has 64 MiB unless it was asked for more

# others use the CPUs, too; as hypothesis itself has it where it sees CI=true
settings.register_profile("busy", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    """A run of unit tests alone keeps its files in memory: each of 3,000 recordings waits for its disk 19 times."""
    paths = [Path(one.split("::")[0]).resolve() for one in config.args]
    if all(HERE in (path, *path.parents) for path in paths) and has_room(IN_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


def has_room(folder: Path) -> bool:
    """Whether the files of a run, programs among them, fit into a folder that may be written."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= ROOM_BYTES and not found.f_flag & os.ST_NOEXEC
