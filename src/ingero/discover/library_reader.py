"""Reads files of traced libraries: how to reach them, what they are, where their probes go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from ingero.discover.driver_offsets import driver_offsets
from ingero.discover.library_files import LibraryFile, identify_all
from ingero.discover.linked_libraries import LinkedLibraries, identify_linked
from ingero.discover.mapped_paths import Reach, reachable_path
from ingero.discover.mappings import Mapping
from ingero.discover.memory_files import MemoryFiles
from ingero.discover.sites import SiteReport, communicator_sites, kernel_name_sites, probe_sites
from ingero.ops import Library

FileKey = tuple[int, int, int, int]
"""Device, inode, size, time of the last change in ns: one file as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibrarySites:
    """The probe sites of one file.

    path: to attach them by, for as long as `held` is open. naming: file offset -> cookie, of the calls that tell of
    communicators or of kernels. failure: why only exported symbols are known; "" where all are.
    """

    report: SiteReport
    naming: dict[int, int]
    path: str
    failure: str = ""
    held: HeldFile | None = field(default=None, compare=False)


class HeldFile:
    """An open file; closed with this."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self) -> None:
        """Closes the file now."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    __del__ = close


class LibraryReader:
    """Reads library files in this process. A process with more rights than the files' authors uses another one
    (`capture/libraries/library_readers.py`).

    Raises:
        OSError, IngeroError: from all that read a file.
    """

    def on_behalf_of(self, pid: int) -> AbstractContextManager[None]:
        """Attributes the work in the block to a process; 0: a file on disk that no process has mapped."""
        del pid
        return nullcontext()

    def may_read(self, pid: int) -> bool:
        """Whether work for this process is allowed now."""
        del pid
        return True

    def withholds(self, pid: int) -> bool:
        """Whether a process is known to hold its memory lock: a probe would wait for that."""
        del pid
        return False

    def maps(self, process: Path) -> bytes:
        """The text of a process's maps."""
        return MemoryFiles(process.parent).maps(int(process.name))

    def reach(self, process: Path, mapped: Mapping) -> tuple[Path, Reach, FileKey]:
        """A path to a mapped file (see `reachable_path`), and its key."""
        path, reach = reachable_path(process, mapped)
        return path, reach, self.key(path)

    def key(self, path: Path) -> FileKey:
        """The key of the file at a path."""
        return file_key(path.stat())

    def keys(self, paths: Iterable[Path]) -> Iterator[FileKey | None]:
        """The keys of files at many paths; None if there is no file."""
        for path in paths:
            try:
                yield self.key(path)
            except OSError:
                yield None

    def identify_all(self, path: Path, name: str) -> tuple[LibraryFile, ...]:
        """As there."""
        return identify_all(path, name=name)

    def identify_linked(self, path: Path, name: str) -> LinkedLibraries:
        """As there."""
        return identify_linked(path, name)

    def sites(self, file: LibraryFile) -> LibrarySites:
        """The probe sites of a file."""
        report, failure = probe_sites(file), ""
        if file.library is Library.CUDA:
            answer = driver_offsets(file, report.sites)
            report, failure = answer.added_to(report), answer.failure
        return LibrarySites(report=report, naming=naming_sites(file), path=str(file.path), failure=failure)


def naming_sites(file: LibraryFile, descriptor: int | None = None) -> dict[int, int]:
    """The sites of calls that name communicators (NCCL) or kernels (CUDA)."""
    tells = communicator_sites if file.library is Library.NCCL else kernel_name_sites
    return tells(file, descriptor)


def file_key(status: os.stat_result) -> FileKey:
    """The key of a file, from its `stat`."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
