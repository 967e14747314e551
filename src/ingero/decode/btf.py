"""Reads C layouts and enums out of the BTF of a compiled BPF object, so that byte layouts are written once, in C.

Source: Linux Documentation/bpf/btf.rst (format of the .BTF section).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ingero.elf import ElfImage, FileSource, UnreadableImageError
from ingero.errors import IngeroError

_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF = 1, 2, 3, 4, 5, 6, 7, 8  # BTF_KIND_*, linux/btf.h
_VOLATILE, _CONST, _RESTRICT, _FUNC_PROTO, _VAR, _DATASEC, _TYPE_TAG, _ENUM64 = 9, 10, 11, 13, 14, 15, 18, 19
_DECL_TAG = 17
_MAX_NAMES = 64  # of one type: typedefs of typedefs
_NAMES_ANOTHER = (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG)
# bytes after the common 12-byte header: a constant, or one entry per member (kind_specific info `vlen`)
_TAIL_BYTES = {_INT: 4, _ARRAY: 12, _VAR: 4, _DECL_TAG: 4}
_ENTRY_BYTES = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _FUNC_PROTO: 8, _DATASEC: 12, _ENUM64: 12}


class LayoutError(IngeroError):
    """The object has no usable BTF, or lacks a needed type."""


@dataclass(frozen=True, slots=True)
class _BtfType:
    kind: int
    name: str
    count: int
    size_or_type: int
    at: int


@contextmanager
def _damage_refused() -> Iterator[None]:
    """Turns errors of damaged BTF (references out of the section, to themselves, or to no layout) into LayoutError."""
    try:
        yield
    except (struct.error, IndexError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise LayoutError(f"the .BTF section is damaged: {error}", hint="make clean build") from error


class Btf:
    """The types of one object.

    Raises:
        LayoutError: no .BTF section, or it is damaged; any method may raise it.
    """

    @_damage_refused()
    def __init__(self, data: bytes) -> None:
        magic, _version, _flags, header_bytes = struct.unpack_from("<HBBI", data)
        if magic != 0xEB9F:
            raise LayoutError("the .BTF section does not begin with the BTF magic", hint="make clean build")
        type_at, type_bytes, string_at, string_bytes = struct.unpack_from("<IIII", data, 8)
        self._data = data[header_bytes + type_at : header_bytes + type_at + type_bytes]
        self._strings = data[header_bytes + string_at : header_bytes + string_at + string_bytes]
        self._types: list[_BtfType] = [_BtfType(0, "void", 0, 0, 0)]
        self._read_types()

    @classmethod
    def of_object(cls, path: Path) -> Btf:
        """The BTF of an ELF object file."""
        try:
            section = ElfImage(FileSource(path)).section_bytes(".BTF")
        except UnreadableImageError:
            section = None
        if section is None:
            raise LayoutError(f"{path.name} has no .BTF section", hint="compile it with -g: make build")
        return cls(section)

    def _read_types(self) -> None:
        at = 0
        while at < len(self._data):
            name_at, info, size_or_type = struct.unpack_from("<III", self._data, at)
            kind, count = info >> 24 & 31, info & 0xFFFF
            at += 12
            self._types.append(_BtfType(kind, self._string(name_at), count, size_or_type, at))
            at += _TAIL_BYTES.get(kind, 0) + _ENTRY_BYTES.get(kind, 0) * count

    def _string(self, at: int) -> str:
        return self._strings[at : self._strings.index(0, at)].decode()

    def _find(self, kind: int, name: str) -> _BtfType:
        for candidate in self._types:
            if candidate.kind == kind and candidate.name == name:
                return candidate
        raise LayoutError(f"the BPF object does not declare {name}", hint="make clean build")

    @_damage_refused()
    def enum(self, name: str) -> dict[str, int]:
        """Names and values of `enum name`, in the order of declaration."""
        found = self._find(_ENUM, name)
        entries = (struct.unpack_from("<Ii", self._data, found.at + 8 * index) for index in range(found.count))
        return {self._string(name_at): value for name_at, value in entries}

    @_damage_refused()
    def dtype(self, name: str, *, header_bytes: int = 0) -> np.dtype[Any]:
        """The numpy layout of `struct name`; `header_bytes` are put before it as field `ring_header`."""
        fields = self._fields(self._find(_STRUCT, name), header_bytes)
        size = self._find(_STRUCT, name).size_or_type + header_bytes
        if header_bytes:
            fields.insert(0, ("ring_header", f"<u{header_bytes}", 0))
        names, formats, offsets = zip(*fields, strict=True)
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})

    def _fields(self, found: _BtfType, base: int) -> list[tuple[str, Any, int]]:
        fields = []
        for index in range(found.count):
            name_at, member, bit_offset = struct.unpack_from("<III", self._data, found.at + 12 * index)
            fields.append((self._string(name_at), self._format(member), base + bit_offset // 8))
        return fields

    def _format(self, index: int) -> Any:
        found = self._named(index)
        if found.kind == _INT:
            return self._int_format(found)
        if found.kind in (_ENUM, _PTR):
            return f"<u{8 if found.kind == _PTR else found.size_or_type}"
        if found.kind == _ARRAY:
            return self._array_format(found)
        if found.kind == _STRUCT:
            names, formats, offsets = zip(*self._fields(found, 0), strict=True)
            return {"names": names, "formats": formats, "offsets": offsets, "itemsize": found.size_or_type}
        raise LayoutError(f"{found.name or 'an unnamed type'} (BTF kind {found.kind}) has no numpy layout", hint="")

    def _named(self, index: int) -> _BtfType:
        """The type behind typedefs and qualifiers."""
        for _ in range(_MAX_NAMES):
            found = self._types[index]
            if found.kind not in _NAMES_ANOTHER:
                return found
            index = found.size_or_type
        raise ValueError("a type that is another name of itself")

    def _int_format(self, found: _BtfType) -> str:
        encoding = struct.unpack_from("<I", self._data, found.at)[0] >> 24
        return f"<{'i' if encoding & 1 else 'u'}{found.size_or_type}"

    def _array_format(self, found: _BtfType) -> Any:
        element, _index_type, count = struct.unpack_from("<III", self._data, found.at)
        inner = self._named(element)
        if inner.kind == _INT and inner.size_or_type == 1 and inner.name == "char":
            return f"S{count}"
        return (self._format(element), (count,))


@lru_cache(maxsize=8)
def btf_of(path: Path) -> Btf:
    """The BTF of an object, read once."""
    return Btf.of_object(path)
