"""Reads the headers of an ELF file, and its bytes by virtual address.

The file belongs to somebody else and may be truncated or rewritten at any moment, so it is read with pread() and never
memory-mapped: a mapped file that shrinks kills its reader with SIGBUS. A 3 GB library costs no more than a small one.

Source: System V ABI, gABI chapters 4 and 5.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")
_MAX_HEADERS = 4096  # more is a damaged file; the largest CUDA library has 60
_MAX_NOTE_BYTES = 1 << 16
LOAD, DYNAMIC, _NOTES, EH_FRAME_HDR = 1, 2, 4, 0x6474E550  # PT_*
_EXECUTABLE = 1  # PF_X
_BUILD_ID = 3  # NT_GNU_BUILD_ID
_MACHINES = {62: "x86_64", 183: "aarch64", 247: "bpf"}  # EM_*


class UnreadableImageError(ValueError):
    """This is no 64-bit little-endian ELF file, or it is damaged; the message says how."""


class Source(Protocol):
    """A source of the bytes of an image."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at a file offset; fewer where it ends."""


class FileSource:
    """A file as source. Raises OSError if it cannot be opened. descriptor: of an open file, which stays open."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        if descriptor is not None:
            self._descriptor = os.dup(descriptor)
        else:
            # not to hang on a FIFO that somebody named like a library
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        """The descriptor of the open file."""
        return self._descriptor

    def read_at(self, offset: int, size: int) -> bytes:
        """See `Source.read_at`; invalid offsets and disk errors read as no bytes."""
        try:
            return os.pread(self._descriptor, size, offset)
        except (OSError, OverflowError):
            return b""

    def close(self) -> None:
        """Closes the file; otherwise it is closed with the last reference."""
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = close


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Bytes in memory as source: the vDSO has no file."""

    data: bytes

    def read_at(self, offset: int, size: int) -> bytes:
        """See `Source.read_at`."""
        return self.data[offset : offset + size] if offset >= 0 else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A program header (segment). file_bytes: its size in the file."""

    kind: int
    offset: int
    vaddr: int
    file_bytes: int
    alignment: int
    is_executable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section header. kind: SHT_*. link: index of the section it refers to."""

    name: str
    kind: int
    offset: int
    size_bytes: int
    link: int


class ElfImage:
    """One ELF file.

    Raises:
        UnreadableImageError: it is not what that says.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        header = self._unpack(_HEADER, 0)
        ident, self.kind, machine = header[0], header[1], header[2]
        if ident[:4] != b"\x7fELF" or ident[4:6] != b"\x02\x01":
            raise UnreadableImageError("it is no 64-bit little-endian ELF file")
        self.machine = _MACHINES.get(machine, f"ELF machine {machine}")
        self._section_table = (header[6], header[12], header[13])
        self.segments = self._read_segments(header[5], header[10])
        self.loads = tuple(one for one in self.segments if one.kind == LOAD)
        self.build_id = self._read_build_id()

    def segment(self, kind: int) -> Segment | None:
        """The first program header of a kind (PT_*)."""
        return next((one for one in self.segments if one.kind == kind), None)

    def sections(self) -> tuple[Section, ...]:
        """All section headers; empty if they are stripped or damaged, as running does not need them."""
        offset, count, names_index = self._section_table
        if not offset or count > _MAX_HEADERS or names_index >= count:
            return ()
        try:
            raw = [self._unpack(_SECTION, offset + index * _SECTION.size) for index in range(count)]
        except UnreadableImageError:
            return ()
        names = self.source.read_at(raw[names_index][4], min(raw[names_index][5], 1 << 20))
        return tuple(
            Section(name=_text(names, one[0]), kind=one[1], offset=one[4], size_bytes=one[5], link=one[6])
            for one in raw
        )

    def section_bytes(self, name: str) -> bytes | None:
        """The bytes of the section with this name; None if there is none."""
        found = next((one for one in self.sections() if one.name == name), None)
        return self.source.read_at(found.offset, found.size_bytes) if found else None

    def offset_of(self, vaddr: int) -> int | None:
        """The file offset of the byte at a virtual address."""
        load = next((one for one in self.loads if one.vaddr <= vaddr < one.vaddr + one.file_bytes), None)
        return vaddr - load.vaddr + load.offset if load else None

    def read(self, vaddr: int, size: int) -> bytes:
        """Up to `size` bytes at an address; fewer where the file or the segment ends."""
        for load in self.loads:
            if load.vaddr <= vaddr < load.vaddr + load.file_bytes:
                left = load.vaddr + load.file_bytes - vaddr
                return self.source.read_at(vaddr - load.vaddr + load.offset, min(size, left))
        return b""

    def bias(self, start: int, file_offset: int) -> int | None:
        """The load bias of this file in a process that has mapped `file_offset` at `start`.

        A mapping begins at a page boundary, at or below the first byte of its segment.
        """
        page = os.sysconf("SC_PAGESIZE")
        for load in self.loads:
            if load.offset // page * page <= file_offset < load.offset + load.file_bytes:
                return start - (load.vaddr - load.offset + file_offset)
        return None

    def _read_segments(self, offset: int, count: int) -> tuple[Segment, ...]:
        if count > _MAX_HEADERS:
            raise UnreadableImageError(f"it claims {count} program headers")
        raw = [self._unpack(_SEGMENT, offset + index * _SEGMENT.size) for index in range(count)]
        return tuple(
            Segment(
                kind=kind,
                offset=offset,
                vaddr=vaddr,
                file_bytes=file_bytes,
                alignment=alignment,
                is_executable=bool(flags & _EXECUTABLE),
            )
            for kind, flags, offset, vaddr, _, file_bytes, _, alignment in raw
        )

    def _read_build_id(self) -> str | None:
        for segment in self.segments:
            if segment.kind == _NOTES:
                notes = self.source.read_at(segment.offset, min(segment.file_bytes, _MAX_NOTE_BYTES))
                found = _build_id(notes, segment.alignment)
                if found:
                    return found
        return None

    def _unpack(self, layout: struct.Struct, offset: int) -> tuple[Any, ...]:
        data = self.source.read_at(offset, layout.size)
        if len(data) != layout.size:
            raise UnreadableImageError(f"it ends before offset {offset + layout.size}")
        return layout.unpack(data)


def _build_id(notes: bytes, alignment: int) -> str | None:
    mask = 7 if alignment == 8 else 3  # notes of other kinds (NT_GNU_PROPERTY_TYPE_0) are aligned to 8 bytes
    at = 0
    while at + _NOTE.size <= len(notes):
        name_bytes, description_bytes, kind = _NOTE.unpack_from(notes, at)
        name_at = at + _NOTE.size
        description_at = name_at + name_bytes + mask & ~mask
        if kind == _BUILD_ID and notes[name_at : name_at + name_bytes] == b"GNU\0":
            return notes[description_at : description_at + description_bytes].hex()
        at = description_at + description_bytes + mask & ~mask
    return None


def _text(names: bytes, at: int) -> str:
    end = names.find(b"\0", at)
    return names[at : end if end >= 0 else len(names)].decode("latin-1")
