"""What identifies one file of a traced library: its kind, its build, and whether two paths are the same file.

A probe binds to the inode of the real file. On overlayfs (containers) one real file shows a different device number in
every mount, so device and inode alone would let the same file be probed twice and its calls be counted twice.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.elf import ElfFile
from ingero.discover.symbol_table import function_offsets
from ingero.errors import IngeroError
from ingero.ops import OPS, Library

_KINDS = {library.value: library for library in Library}
_NAME = r"lib(?:cudart|cuda|nccl)(?:-[0-9a-f]{6,})?\.so(?:\.\d+)*"  # wheels repaired by auditwheel carry a hash
_FILE_NAME = re.compile(rf"{_NAME}\Z")
MAPPED_NAME = re.compile(rf"/{_NAME}(?: \(deleted\))?$".encode(), re.MULTILINE)
_FINGERPRINT_BYTES = 1 << 20  # holds headers, hash and symbol tables of every library seen
_OVERLAYFS = 0x794C7630  # OVERLAYFS_SUPER_MAGIC, include/uapi/linux/magic.h
_STATFS_BYTES = 256  # struct statfs is 120 bytes on 64-bit Linux and begins with f_type
_libc = ctypes.CDLL(None, use_errno=True)
_PROBES_PER_KIND = 8  # exported rows looked up to tell the kind of a library with a name of its own


class NotATracedLibraryError(IngeroError):
    """A file that is none of the libraries whose calls are traced."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} exports no traced call of libcudart, libcuda or libnccl",
            hint="name the library file itself, for example /usr/lib/x86_64-linux-gnu/libcuda.so.1",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFile:
    """One file that holds a traced library.

    path: readable by the agent when it was found.
    device: of the file system that holds the file; None on overlayfs, where the device below is not known.
    build: the build-id in hex; "sha256:..." of the beginning and the size where there is none. Equal builds have equal
        code at equal offsets.
    soname: as the library names itself; empty if it does not.
    """

    library: Library
    path: Path
    device: int | None
    inode: int
    size_bytes: int
    build: str
    soname: str
    machine: str

    def is_same_file(self, other: LibraryFile) -> bool:
        """Whether a probe in one is a probe in the other.

        Two equal builds with the same inode number count as one file as soon as one of them lies on overlayfs.
        """
        if (self.inode, self.size_bytes, self.build) != (other.inode, other.size_bytes, other.build):
            return False
        return self.device is None or other.device is None or self.device == other.device


def library_kind(file_name: str) -> Library | None:
    """The traced library a file name belongs to (`libcudart.so.12`, `libcudart-80664282.so.11.0`), or None."""
    if not _FILE_NAME.match(file_name):
        return None
    return _KINDS[re.split(r"[.-]", file_name, maxsplit=1)[0]]


def identify(path: Path, name: str | None = None, descriptor: int | None = None) -> LibraryFile:
    """Reads who a library file is.

    name: the file name to judge by, where `path` is only a way to reach it (/proc/PID/map_files/...). A file with a
        name of its own is judged by its soname, then by what it exports.
    descriptor: of the file, where it is open already.

    Raises:
        OSError: the file is gone or may not be read.
        UnreadableElfError: it is damaged.
        NotATracedLibraryError: it exports none of the traced calls.
    """
    with ElfFile(path, descriptor) as elf:
        kind = library_kind(name or path.name) or library_kind(elf.soname) or _kind_by_exports(elf)
        if kind is None:
            raise NotATracedLibraryError(path)
        return describe(elf, kind)


def describe(elf: ElfFile, kind: Library) -> LibraryFile:
    """An open file as a copy of a traced library."""
    return LibraryFile(
        library=kind,
        path=elf.path,
        device=None if _is_on_overlay(elf.fileno()) else elf.status.st_dev,
        inode=elf.status.st_ino,
        size_bytes=elf.status.st_size,
        build=elf.build_id or _fingerprint(elf),
        soname=elf.soname,
        machine=elf.machine,
    )


def _is_on_overlay(descriptor: int) -> bool:
    answer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(descriptor, answer) != 0:
        return False
    return int.from_bytes(answer.raw[:4], sys.byteorder) == _OVERLAYFS


def _kind_by_exports(elf: ElfFile) -> Library | None:
    for library in Library:
        symbols = [op.symbols[0] for op in OPS if op.library is library][:_PROBES_PER_KIND]
        if function_offsets(elf, symbols):
            return library
    return None


def _fingerprint(elf: ElfFile) -> str:
    digest = hashlib.sha256(elf.read_at(0, _FINGERPRINT_BYTES))
    digest.update(str(elf.status.st_size).encode())
    return f"sha256:{digest.hexdigest()}"
