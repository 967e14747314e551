"""Reads what probes need from a shared library: build-id, soname, and file offsets of exported functions.

A name is found through the library's own hash table (a few reads), never by walking all symbols: some CUDA libraries
export tens of thousands. The file belongs to somebody else and may be truncated or rewritten at any moment, so it is
read with pread() and never memory-mapped (a mapped file that shrinks kills its reader with SIGBUS).

Source: System V ABI, gABI chapter 5 (DT_HASH); the DT_GNU_HASH layout of GNU binutils.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import NoteSegment

from ingero.errors import IngeroError

_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_UNDEFINED = 0  # SHN_UNDEF
_UNTYPED, _DATA, _FUNCTION = 0, 1, 2  # STT_NOTYPE, STT_OBJECT, STT_FUNC
_GLOBAL, _WEAK, _GNU_UNIQUE = 1, 2, 10  # STB_*
_EXECUTABLE = 1  # PF_X
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_MAX_CHAIN = 1 << 20  # a longer hash chain is a loop in a damaged file


class UnreadableElfError(IngeroError):
    """The file is no complete 64-bit little-endian ELF shared library."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"cannot read {path} as a shared library: {reason}",
            hint="it may be half-written or damaged: reinstall the package it belongs to",
        )
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Load:
    vaddr: int
    offset: int
    size: int
    is_executable: bool


class ElfFile:
    """One shared library, open for lookups; use it in a `with` statement.

    Raises:
        OSError: the file cannot be opened.
        UnreadableElfError: it is not what `UnreadableElfError` says; any method may raise it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Not to hang on a FIFO that somebody named like a library.
        self._stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
        self.status = os.fstat(self._stream.fileno())
        try:
            if not stat.S_ISREG(self.status.st_mode):
                raise ELFError("it is no regular file")
            self._parse()
        except (ELFError, ConstructError, struct.error, ValueError, KeyError, TypeError) as error:
            # pyelftools meets damaged files with any of these.
            self._stream.close()
            raise UnreadableElfError(path, str(error) or type(error).__name__) from error
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def fileno(self) -> int:
        """The descriptor of the open file."""
        return self._stream.fileno()

    def functions(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """Where exported functions begin: name -> file offsets; names that are not exported are left out.

        A name has several offsets when it is exported in several versions. Data, undefined symbols and indirect
        functions (whose symbol is a resolver, not the function) are left out.
        """
        found = ((name, self._function_offsets(name)) for name in names)
        return {name: offsets for name, offsets in found if offsets}

    def data(self, names: Iterable[str]) -> dict[str, int]:
        """Where exported variables lie: name -> address relative to the load base; those not exported are left out."""
        found = ((name, self._data_address(name)) for name in names)
        return {name: address for name, address in found if address is not None}

    def bias(self, start: int, file_offset: int) -> int | None:
        """What is added to this file's addresses in a process that has mapped `file_offset` at `start`."""
        for load in self._loads:
            if load.offset // _PAGE_BYTES * _PAGE_BYTES <= file_offset < load.offset + load.size:
                return start - (load.vaddr - load.offset + file_offset)
        return None

    def file_offset(self, vaddr: int) -> int | None:
        """The file offset of an address relative to the load base; None where no code of the file lies."""
        for load in self._loads:
            if load.is_executable and load.vaddr <= vaddr < load.vaddr + load.size:
                return vaddr - load.vaddr + load.offset
        return None

    def read_at(self, offset: int, size: int = 16) -> bytes:
        """Up to `size` bytes at a file offset."""
        return os.pread(self._stream.fileno(), size, offset)

    def _parse(self) -> None:
        elf = ELFFile(self._stream)
        if elf.elfclass != 64 or not elf.little_endian:
            raise ELFError("only 64-bit little-endian files are supported")
        self.machine: str = elf["e_machine"]
        self.build_id: str | None = None
        self.soname = ""
        self.needed: tuple[str, ...] = ()
        self._loads: tuple[_Load, ...] = ()
        self._tables: dict[str, int] = {}
        for segment in elf.iter_segments():
            if segment["p_type"] == "PT_LOAD":
                self._loads += (self._load(segment),)
            elif isinstance(segment, NoteSegment):
                self.build_id = self.build_id or _build_id(segment)
            elif isinstance(segment, DynamicSegment):
                self._read_dynamic(segment)

    @staticmethod
    def _load(segment: Any) -> _Load:
        executable = bool(segment["p_flags"] & _EXECUTABLE)
        return _Load(segment["p_vaddr"], segment["p_offset"], segment["p_filesz"], executable)

    def _read_dynamic(self, segment: Any) -> None:
        for tag in segment.iter_tags("DT_SONAME"):
            self.soname = str(tag.soname)
        self.needed = tuple(str(tag.needed) for tag in segment.iter_tags("DT_NEEDED"))
        for name in ("DT_GNU_HASH", "DT_HASH", "DT_SYMTAB", "DT_STRTAB"):
            _, offset = segment.get_table_offset(name)
            if offset is not None:
                self._tables[name] = offset

    def _function_offsets(self, name: str) -> tuple[int, ...]:
        raw = name.encode()
        offsets = {self._offset_of_function(index, raw): None for index in self._candidates(raw)}
        return tuple(offset for offset in offsets if offset is not None)

    def _data_address(self, name: str) -> int | None:
        raw = name.encode()
        symbols = (self._symbol(index, raw) for index in self._candidates(raw))
        return next((vaddr for kind, vaddr in filter(None, symbols) if kind in (_UNTYPED, _DATA)), None)

    def _offset_of_function(self, index: int, name: bytes) -> int | None:
        symbol = self._symbol(index, name)
        return self.file_offset(symbol[1]) if symbol and symbol[0] == _FUNCTION else None

    def _symbol(self, index: int, name: bytes) -> tuple[int, int] | None:
        """(type, address) of an exported symbol if it is called `name`."""
        entry = self._read(self._tables["DT_SYMTAB"] + index * _SYMBOL.size, _SYMBOL.size)
        name_at, info, _, section, vaddr, _ = _SYMBOL.unpack(entry)
        if section == _UNDEFINED or info >> 4 not in (_GLOBAL, _WEAK, _GNU_UNIQUE):
            return None
        if self.read_at(self._tables["DT_STRTAB"] + name_at, len(name) + 1) != name + b"\0":
            return None
        return info & 0xF, vaddr

    def _candidates(self, name: bytes) -> Iterator[int]:
        if not self._tables.keys() >= {"DT_SYMTAB", "DT_STRTAB"}:
            return iter(())
        if "DT_GNU_HASH" in self._tables:
            return self._gnu_candidates(_gnu_hash(name))
        return self._sysv_candidates(_sysv_hash(name)) if "DT_HASH" in self._tables else iter(())

    def _gnu_candidates(self, name_hash: int) -> Iterator[int]:
        buckets, first, buckets_at, chains_at = self._gnu_layout
        if not buckets:
            return
        index = self._word(buckets_at + 4 * (name_hash % buckets))
        if index < first:  # an empty bucket
            return
        for step in range(_MAX_CHAIN):
            value = self._word(chains_at + 4 * (index + step - first))
            if value | 1 == name_hash | 1:
                yield index + step
            if value & 1:
                return

    @cached_property
    def _gnu_layout(self) -> tuple[int, int, int, int]:
        start = self._tables["DT_GNU_HASH"]
        buckets, first, bloom_words, _ = struct.unpack("<4I", self._read(start, 16))
        buckets_at = start + 16 + 8 * bloom_words
        return buckets, first, buckets_at, buckets_at + 4 * buckets

    def _sysv_candidates(self, name_hash: int) -> Iterator[int]:
        start = self._tables["DT_HASH"]
        buckets = self._word(start)
        index = self._word(start + 8 + 4 * (name_hash % buckets)) if buckets else 0
        for _ in range(_MAX_CHAIN):
            if not index:
                return
            yield index
            index = self._word(start + 8 + 4 * (buckets + index))

    def _word(self, offset: int) -> int:
        return int.from_bytes(self._read(offset, 4), "little")

    def _read(self, offset: int, size: int) -> bytes:
        data = b""
        with suppress(OSError, OverflowError):  # an offset no file has: a damaged table
            data = self.read_at(offset, size)
        if len(data) != size:
            raise UnreadableElfError(self.path, f"it ends before offset {offset + size}")
        return data


def _build_id(segment: NoteSegment) -> str | None:
    for note in segment.iter_notes():
        if note["n_type"] == "NT_GNU_BUILD_ID":
            return str(note["n_desc"])
    return None


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _sysv_hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value
