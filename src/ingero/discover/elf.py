"""Reads what probes need from a shared library: build-id, soname, and file offsets of exported functions.

A name is found through the library's own hash table (a few reads), never by walking all symbols: some CUDA libraries
export tens of thousands. The file belongs to somebody else and may be truncated or rewritten at any moment, so it is
read with pread() and never memory-mapped (a mapped file that shrinks kills its reader with SIGBUS).

Source: System V ABI, gABI chapters 4 (header) and 5 (program header, DT_HASH); the DT_GNU_HASH layout of GNU binutils.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from types import TracebackType

from ingero.elf import DYNAMIC, ElfImage, FileSource, UnreadableImageError
from ingero.errors import IngeroError
from ingero.foreign_text import decoded

_TAG = struct.Struct("<QQ")  # Elf64_Dyn
_NEEDED, _SONAME = 1, 14  # DT_*
_TABLES = {4: "DT_HASH", 5: "DT_STRTAB", 6: "DT_SYMTAB", 0x6FFFFEF5: "DT_GNU_HASH"}
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_MAX_SEGMENT_BYTES = 1 << 20  # of dynamic tags; more is a damaged file
_MAX_NAME_BYTES = 4096
_SYMBOL = struct.Struct("<IBBHQQ")  # Elf64_Sym
_UNDEFINED = 0  # SHN_UNDEF
_UNTYPED, _DATA, _FUNCTION = 0, 1, 2  # STT_NOTYPE, STT_OBJECT, STT_FUNC
_GLOBAL, _WEAK, _GNU_UNIQUE = 1, 2, 10  # STB_*
_MAX_CHAIN = 1 << 20  # a longer hash chain is a loop in a damaged file


class UnreadableElfError(IngeroError):
    """The file is no complete 64-bit little-endian ELF shared library."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"cannot read {path} as a shared library: {reason}",
            hint="it may be half-written or damaged: reinstall the package it belongs to",
        )
        self.reason = reason


class ElfFile:
    """A shared library, open for lookups; use it in a `with` statement. descriptor: see FileSource.

    Raises:
        OSError: the file cannot be opened.
        UnreadableElfError: it is not what `UnreadableElfError` says; any method may raise it.
    """

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path = path
        self._source = FileSource(path, descriptor)
        self.status = os.fstat(self._source.fileno())
        try:
            if not stat.S_ISREG(self.status.st_mode):
                raise UnreadableElfError(path, "it is not a regular file")
            self._parse()
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.close()

    def fileno(self) -> int:
        """The descriptor of the open file."""
        return self._source.fileno()

    def functions(self, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
        """File offsets of exported functions: name -> file offsets; names that are not exported are left out.

        A name has several offsets when it is exported in several versions. Data, undefined symbols and indirect
        functions (whose symbol is a resolver, not the function) are left out.
        """
        found = ((name, self._function_offsets(name)) for name in names)
        return {name: offsets for name, offsets in found if offsets}

    def data(self, names: Iterable[str]) -> dict[str, int]:
        """Addresses of exported variables: name -> address relative to the load base; others are left out."""
        found = ((name, self._data_symbol(name)) for name in names)
        return {name: symbol[1] for name, symbol in found if symbol}

    def data_bytes(self, name: str) -> int:
        """The size of an exported variable, bytes; 0: not known."""
        symbol = self._data_symbol(name)
        return symbol[2] if symbol else 0

    def bias(self, start: int, file_offset: int) -> int | None:
        """The load bias; see `ElfImage.bias`."""
        return self.image.bias(start, file_offset)

    def file_offset(self, vaddr: int) -> int | None:
        """The file offset of an address relative to the load base; None if no code of the file lies there."""
        for load in self.image.loads:
            if load.is_executable and load.vaddr <= vaddr < load.vaddr + load.file_bytes:
                return vaddr - load.vaddr + load.offset
        return None

    def read_at(self, offset: int, size: int = 16) -> bytes:
        """Up to `size` bytes at a file offset."""
        return self._source.read_at(offset, size)

    def _parse(self) -> None:
        try:
            self.image = ElfImage(self._source)
        except UnreadableImageError as error:
            raise UnreadableElfError(self.path, str(error)) from None
        self.machine = _MACHINES.get(self.image.machine, self.image.machine)
        self.build_id = self.image.build_id
        self.soname = ""
        self.needed: tuple[str, ...] = ()
        self._tables: dict[str, int] = {}
        dynamic = self.image.segment(DYNAMIC)
        if dynamic:
            self._read_dynamic(self._read(dynamic.offset, min(dynamic.file_bytes, _MAX_SEGMENT_BYTES)))

    def _read_dynamic(self, segment: bytes) -> None:
        tags: list[tuple[int, int]] = []
        for tag, value in _TAG.iter_unpack(segment[: len(segment) // _TAG.size * _TAG.size]):
            if not tag:  # DT_NULL
                break
            tags.append((tag, value))
        for tag, value in tags:
            offset = self.image.offset_of(value) if tag in _TABLES else None
            if offset is not None:
                self._tables[_TABLES[tag]] = offset
        self.soname = next((self._string(value) for tag, value in tags if tag == _SONAME), "")
        self.needed = tuple(self._string(value) for tag, value in tags if tag == _NEEDED)

    def _string(self, at: int) -> str:
        if "DT_STRTAB" not in self._tables:
            raise UnreadableElfError(self.path, "it has no table of strings")
        start, end = self._tables["DT_STRTAB"] + at, b"\0"
        text = self.read_at(start, _MAX_NAME_BYTES)
        if end not in text:
            raise UnreadableElfError(self.path, f"the name at offset {start} does not end")
        return decoded(text.partition(end)[0])

    def _function_offsets(self, name: str) -> tuple[int, ...]:
        raw = name.encode()
        offsets = {self._offset_of_function(index, raw): None for index in self._candidates(raw)}
        return tuple(offset for offset in offsets if offset is not None)

    def _data_symbol(self, name: str) -> tuple[int, int, int] | None:
        raw = name.encode()
        symbols = (self._symbol(index, raw) for index in self._candidates(raw))
        return next((one for one in symbols if one and one[0] in (_UNTYPED, _DATA)), None)

    def _offset_of_function(self, index: int, name: bytes) -> int | None:
        symbol = self._symbol(index, name)
        return self.file_offset(symbol[1]) if symbol and symbol[0] == _FUNCTION else None

    def _symbol(self, index: int, name: bytes) -> tuple[int, int, int] | None:
        """(type, address, bytes) of an exported symbol if it is called `name`."""
        entry = self._read(self._tables["DT_SYMTAB"] + index * _SYMBOL.size, _SYMBOL.size)
        name_at, info, _, section, vaddr, size_bytes = _SYMBOL.unpack(entry)
        if section == _UNDEFINED or info >> 4 not in (_GLOBAL, _WEAK, _GNU_UNIQUE):
            return None
        if self.read_at(self._tables["DT_STRTAB"] + name_at, len(name) + 1) != name + b"\0":
            return None
        return info & 0xF, vaddr, size_bytes

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
        data = self.read_at(offset, size)
        if len(data) != size:
            raise UnreadableElfError(self.path, f"it ends before offset {offset + size}")
        return data


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
