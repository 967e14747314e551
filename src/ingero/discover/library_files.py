"""Identifies files of traced libraries: kind, build, and whether two paths are the same file.

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
from ingero.discover.symbol_table import function_offsets, section_contains
from ingero.errors import IngeroError
from ingero.ops import OPS, Library

_KINDS = {library.value: library for library in Library}
_NAME = r"lib(?:cudart|cuda|nccl)(?:-[0-9a-f]{6,})?\.so(?:\.\d+)*"  # wheels repaired by auditwheel carry a hash
_FILE_NAME = re.compile(rf"{_NAME}\Z")
# Files for the linker, never run: their functions only report that, or it is a link to the real one.
_FOR_THE_LINKER = "libcuda.so"
STUB_FOLDER = "stubs"  # of the CUDA toolkit, in each of its layouts
# mov $34,%eax; ret, with what may stand before it without optimization; on arm64 mov w0, #34; ret
_STUBS_ANSWER = re.compile(
    rb"(?:\xf3\x0f\x1e\xfa)?(?:\x55\x48\x89\xe5)?(?:[\x89\x48].{1,3}){0,4}?\xb8\x22\x00\x00\x00(?:\x5d|\xc9)?\xc3"
    rb"|(?:\x5f\x24\x03\xd5)?\x40\x04\x80\x52\xc0\x03\x5f\xd6",
    re.DOTALL,
)
_ANSWER_BYTES = 32
_DRIVERS_OWN = ("cuInit", "cuCtxSynchronize", "cuMemAlloc_v2", "cuLaunchKernel")
MAPPED_NAME = re.compile(rf"/{_NAME}(?: \(deleted\))?$".encode(), re.MULTILINE)
_FINGERPRINT_BYTES = 1 << 20  # holds headers, hash and symbol tables of every library seen
_OVERLAYFS = 0x794C7630  # OVERLAYFS_SUPER_MAGIC, include/uapi/linux/magic.h
_STATFS_BYTES = 256  # struct statfs is 120 bytes on 64-bit Linux and begins with f_type
_libc = ctypes.CDLL(None, use_errno=True)
_PROBES_PER_KIND = 8  # rows looked up to tell the kind of a library with a name of its own
# Constants of every version, absent from its callers: a variable that it reads, an error's text.
TEXT_OF = {
    Library.NCCL: b"NCCL_SOCKET_IFNAME",
    Library.CUDART: b"CUDA driver version is insufficient for CUDA runtime version",
}


class StubLibraryError(IngeroError):
    """A driver stub library made for linking: its functions do nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is a stub made for linking, not a driver",
            hint="take its folder (.../stubs) out of LD_LIBRARY_PATH: a program that loads it has no GPU",
        )


class NotATracedLibraryError(IngeroError):
    """The file is none of the traced libraries."""

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
        """Whether both are the same file, so that a probe in one is a probe in the other.

        Two equal builds with the same inode number count as one file as soon as one of them lies on overlayfs. Two
        libraries that were linked into one file are two: each has calls of its own.
        """
        mine, theirs = ((one.library, one.inode, one.size_bytes, one.build) for one in (self, other))
        if mine != theirs:
            return False
        return self.device is None or other.device is None or self.device == other.device


def may_be_traced(file_name: str) -> bool:
    """Whether a file of this name may hold a traced library: a known name, or an ambiguous one."""
    return _FILE_NAME.match(file_name) is not None


def library_kind(file_name: str) -> Library | None:
    """The traced library a file name belongs to (`libcudart.so.12`, `libcudart-80664282.so.11.0`), or None.

    `libcuda.so` is the linker's name of a driver: what is in such a file only its content says. A name may be as the
    kernel shows that of a file that is gone.
    """
    file_name = file_name.removesuffix(" (deleted)")
    if not _FILE_NAME.match(file_name) or file_name == _FOR_THE_LINKER:
        return None
    return _KINDS[re.split(r"[.-]", file_name, maxsplit=1)[0]]


def identify(path: Path, name: str | None = None, descriptor: int | None = None) -> LibraryFile:
    """The traced library in a file; the first if it holds several (see `identify_all`)."""
    return identify_all(path, name, descriptor)[0]


def identify_all(path: Path, name: str | None = None, descriptor: int | None = None) -> tuple[LibraryFile, ...]:
    """Reads which traced libraries a file holds: usually one, several if they were linked into another library.

    name: the file name to judge by, where `path` is only a way to reach it (/proc/PID/map_files/...). A file with a
        name of its own is judged by its soname, then by what it exports, or has in its table of symbols.
    descriptor: of the file, where it is open already.

    Raises:
        OSError: the file is gone or may not be read.
        UnreadableElfError: it is damaged.
        NotATracedLibraryError: it holds none of the traced calls.
        StubLibraryError: it is the toolkit's stand-in for a driver.
    """
    with ElfFile(path, descriptor) as elf:
        named = library_kind(name or path.name) or library_kind(elf.soname)
        kinds = (named,) if named else _kinds_by_symbols(elf)
        if not kinds:
            raise NotATracedLibraryError(path)
        if kinds == (Library.CUDA,) and _is_stub(elf, path):
            raise StubLibraryError(path)
        return tuple(describe(elf, kind) for kind in kinds)


def _is_stub(elf: ElfFile, path: Path) -> bool:
    """Whether a driver's functions only return CUDA_ERROR_STUB_LIBRARY."""
    if path.parent.name == STUB_FOLDER:
        return True
    places = [offset for offsets in elf.functions(_DRIVERS_OWN).values() for offset in offsets]
    return bool(places) and all(_STUBS_ANSWER.match(elf.read_at(place, _ANSWER_BYTES)) for place in places)


def describe(elf: ElfFile, kind: Library) -> LibraryFile:
    """Describes an open file as a copy of a traced library."""
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


def _kinds_by_symbols(elf: ElfFile) -> tuple[Library, ...]:
    """The libraries whose functions a file has. Driver functions beside others only load it: it is never linked in."""
    found = tuple(one for one in Library if _has_functions_of(elf, one) and not only_loads(elf, one))
    return tuple(one for one in found if one is not Library.CUDA) or found


def _has_functions_of(elf: ElfFile, library: Library) -> bool:
    symbols = [op.symbols[0] for op in OPS if op.library is library][:_PROBES_PER_KIND]
    return bool(function_offsets(elf, symbols))


def only_loads(elf: ElfFile, library: Library) -> bool:
    """Whether a file's functions named like a library's only load and call it (ctranslate2, JAX, TensorFlow stubs)."""
    text = TEXT_OF.get(library)
    if text is None:
        return False
    names = f"{library.value}.so".encode()
    return section_contains(elf, ".rodata", names) and not section_contains(elf, ".rodata", text)


def _fingerprint(elf: ElfFile) -> str:
    digest = hashlib.sha256(elf.read_at(0, _FINGERPRINT_BYTES))
    digest.update(str(elf.status.st_size).encode())
    return f"sha256:{digest.hexdigest()}"
