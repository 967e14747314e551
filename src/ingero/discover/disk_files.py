"""File system queries of the search for libraries on disk, run in this process.

A file system that does not answer holds up who asks: a recording asks through the sandbox
(capture/foreign/disk_files.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.library_search import library_copies_on_disk
from ingero.discover.processes import PROC

_MAX_FOUND = 4096  # at once: a foreign folder may have a million


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file named like a traced library."""

    path: Path
    inode: int
    changed_ns: int


class DiskFiles:
    """Queries file systems directly. Raises OSError if there is no answer."""

    def root(self, pid: int) -> tuple[int, int]:
        """Device and inode of a process's root folder; pid 0: of this process's."""
        status = (PROC / str(pid) / "root" if pid else Path("/")).stat()
        return status.st_dev, status.st_ino

    def present(self, paths: Sequence[Path]) -> list[bool]:
        """Whether each of these paths exists."""
        return [path.exists() for path in paths]

    def copies(
        self,
        root: Path,
        *,
        prefixes: Sequence[Path] = (),
        environs: Sequence[Mapping[str, str]] = (),
        homes: Sequence[Path] | None = None,
        has_well_known: bool = True,
    ) -> list[FoundFile]:
        """Finds library files; see `library_copies_on_disk`."""
        paths = library_copies_on_disk(
            root=root, prefixes=prefixes, environs=environs, homes=homes, has_well_known=has_well_known
        )
        return [one for path in paths[:_MAX_FOUND] if (one := _found(path))]


def _found(path: Path) -> FoundFile | None:
    try:
        status = path.stat()
    except OSError:  # gone again
        return None
    return FoundFile(path, status.st_ino, status.st_mtime_ns)
