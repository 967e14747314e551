"""Names the function at an address of a file from its symbol tables, read once, on the first question.

A name is given only where a symbol says that its function covers the address: in a stripped file the nearest symbol
before it may belong to something else.

Source: System V ABI, gABI chapter 4, "Symbol Table".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ingero.elf import ElfImage
from ingero.foreign_text import decoded

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_FUNCTION, _INDIRECT = 2, 10  # STT_FUNC, STT_GNU_IFUNC
_LOCAL = 0  # STB_LOCAL: of two names of one address the exported one is known to the world
_MAX_TABLE_BYTES = 1 << 27  # of all tables of a file: 5 million symbols; libtorch_cpu.so with its debug symbols has 1
_PIECE_BYTES = 24 << 18  # read at once: of all symbols a few are functions
_NAME_BLOCK = 256
_MAX_NAME_BYTES = 1 << 16  # mangled template names reach 20 KB

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Symbol:
    """name: as in the file (mangled). offset: of the address asked for, from the function's first byte."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class _Functions:
    """By address: starts and sizes, and where in the file their names are. 24 bytes a function."""

    starts: Array
    sizes: Array
    names: Array


class SymbolTable:
    """The functions of one file."""

    def __init__(self, image: ElfImage) -> None:
        self._image = image

    def at(self, vaddr: int) -> Symbol | None:
        """The function that covers an address of the file; None if no symbol says so."""
        functions = self._functions
        index = int(np.searchsorted(functions.starts, np.uint64(vaddr), side="right")) - 1
        if index < 0:
            return None
        offset = vaddr - int(functions.starts[index])
        if offset >= int(functions.sizes[index]):
            return None
        return Symbol(self._name(int(functions.names[index])), offset)

    @cached_property
    def _functions(self) -> _Functions:
        pieces = list(self._pieces())
        symbols = np.concatenate([symbols for symbols, _ in pieces]) if pieces else np.empty(0, _SYMBOL)
        names = np.concatenate([names for _, names in pieces]) if pieces else np.empty(0, np.uint64)
        # several names of one address: the exported first, of those the first in the file
        order = np.lexsort((symbols["info"] >> 4 == _LOCAL, symbols["value"]))
        first = np.ones(len(order), bool)
        first[1:] = symbols["value"][order][1:] != symbols["value"][order][:-1]
        order = order[first]
        return _Functions(symbols["value"][order], symbols["size"][order], names[order])

    @property
    def size_bytes(self) -> int:
        """How much of it is kept."""
        functions: _Functions | None = self.__dict__.get("_functions")
        return functions.starts.nbytes + functions.sizes.nbytes + functions.names.nbytes if functions else 0

    def _pieces(self) -> Iterator[tuple[Array, Array]]:
        """The functions of all tables, and the file offsets of their names."""
        sections, left = self._image.sections(), _MAX_TABLE_BYTES
        for section in sections:
            if section.name not in (".symtab", ".dynsym") or section.link >= len(sections):
                continue
            end = min(section.size_bytes, left)
            left -= end
            names_at = np.uint64(sections[section.link].offset)
            for begin in range(0, end, _PIECE_BYTES):
                data = self._image.source.read_at(section.offset + begin, min(_PIECE_BYTES, end - begin))
                symbols = np.frombuffer(data, _SYMBOL, len(data) // _SYMBOL.itemsize)
                is_named = np.isin(symbols["info"] & 0xF, (_FUNCTION, _INDIRECT)) & (symbols["section"] != 0)
                symbols = symbols[is_named & (symbols["size"] > 0)]
                yield symbols, symbols["name"].astype(np.uint64) + names_at

    def _name(self, offset: int) -> str:
        raw = b""
        while len(raw) < _MAX_NAME_BYTES:
            block = self._image.source.read_at(offset + len(raw), _NAME_BLOCK)
            end = block.find(b"\0")
            raw += block if end < 0 else block[:end]
            if end >= 0 or not block:
                break
        return decoded(raw)
