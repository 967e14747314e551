"""What is asked of the files of traced libraries: where they can be reached, what they are, where their probes go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from ingero.discover.driver_offsets import driver_offsets
from ingero.discover.library_files import LibraryFile, identify_all
from ingero.discover.linked_libraries import Linked, identify_linked
from ingero.discover.mapped_paths import Reach, reachable_path
from ingero.discover.mappings import Mapping
from ingero.discover.memory_files import MemoryFiles
from ingero.discover.sites import SiteReport, communicator_sites, kernel_name_sites, probe_sites
from ingero.ops import Library

FileKey = tuple[int, int, int, int]
"""Device, inode, size, time of the last change in ns: one file as it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibrarySites:
    """Where the probes of one file go.

    path: to attach them by, for as long as `held` is open. telling: file offset -> cookie, of the calls that tell of
    communicators or of kernels. failure: why only exported symbols are known; "" where all are.
    """

    report: SiteReport
    telling: dict[int, int]
    path: str
    failure: str = ""
    held: Held | None = field(default=None, compare=False)


class Held:
    """An open file; closed with this."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self) -> None:
        """Now."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    __del__ = close


class LibraryReader:
    """Reads in this very process. Whoever has rights that the authors of the files have not lets another one do it
    (`capture/libraries/library_readers.py`).

    Raises:
        OSError, IngeroError: from all that read a file.
    """

    def on_behalf_of(self, pid: int) -> AbstractContextManager[None]:
        """What is done inside is done because of this process; 0: of a file on the disk that nobody has mapped."""
        del pid
        return nullcontext()

    def may_read(self, pid: int) -> bool:
        """Whether anything may be done because of this process now."""
        del pid
        return True

    def withholds(self, pid: int) -> bool:
        """Whether a process holds the lock of its memory, as far as is known: a probe would wait for that."""
        del pid
        return False

    def maps(self, process: Path) -> bytes:
        """What a process maps, as the kernel tells it."""
        return MemoryFiles(process.parent).maps(int(process.name))

    def reach(self, process: Path, mapped: Mapping) -> tuple[Path, Reach, FileKey]:
        """As `reachable_path`, with what lies there."""
        path, reach = reachable_path(process, mapped)
        return path, reach, self.key(path)

    def key(self, path: Path) -> FileKey:
        """What lies at a path."""
        return file_key(path.stat())

    def keys(self, paths: Iterable[Path]) -> Iterator[FileKey | None]:
        """The same of many; None where nothing does."""
        for path in paths:
            try:
                yield self.key(path)
            except OSError:
                yield None

    def identify_all(self, path: Path, name: str) -> tuple[LibraryFile, ...]:
        """As there."""
        return identify_all(path, name=name)

    def identify_linked(self, path: Path, name: str) -> Linked:
        """As there."""
        return identify_linked(path, name)

    def sites(self, file: LibraryFile) -> LibrarySites:
        """Where its probes go."""
        report, failure = probe_sites(file), ""
        if file.library is Library.CUDA:
            answer = driver_offsets(file, report.sites)
            report, failure = answer.added_to(report), answer.failure
        return LibrarySites(report=report, telling=telling_sites(file), path=str(file.path), failure=failure)


def telling_sites(file: LibraryFile, descriptor: int | None = None) -> dict[int, int]:
    """Of NCCL those that tell of communicators, of CUDA those that tell what kernels are called."""
    tells = communicator_sites if file.library is Library.NCCL else kernel_name_sites
    return tells(file, descriptor)


def file_key(status: os.stat_result) -> FileKey:
    """What `stat` says of one file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
