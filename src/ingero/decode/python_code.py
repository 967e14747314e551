"""Code objects of other processes: from records of the kernel side, or read from memory afterwards."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ingero.decode.python_lines import line_of
from ingero.decode.python_strings import bytes_per_character, decode_string

CODE_BYTES = 160  # what is read of a code object: a header of 32 bytes, and what its key is made of
_KEY_WORDS, _HALF_WORD = 16, 4  # python_code.h
_TABLE_BEGINNING = struct.Struct("<4Q")
_FNV_BASIS, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3  # of FNV-1a, 64 bits
_MASK = (1 << 64) - 1
_HEADER_BYTES = 16  # PyObject: 64 bits of count, of which newer versions use 32, and flags in the highest 16; the type
_COUNT, _ABOVE_COUNT = (1 << 32) - 1, 0xFFFF << 32
_WORD = struct.Struct("<Q")
_MAX_STRING_BYTES = 1 << 16
_MAX_TABLE_BYTES = 1 << 18  # 80,000 lines; it is read to its end for a line there, which takes 30 ms

Read = Callable[[int, int], bytes]
"""Reads (address, size) of the process; raises OSError where that is not there."""


@dataclass(frozen=True, slots=True)
class CodeObject:
    """A code object. file, name: co_filename, co_qualname (before 3.11 co_name). first_line: of its `def`."""

    file: str
    name: str
    first_line: int
    table: bytes

    def line(self, version: tuple[int, int], instruction: int) -> int | None:
        """The line of the instruction at a byte offset of the code; None if the compiler gave it none."""
        if instruction < 0:
            return self.first_line
        return line_of(version, self.table, self.first_line, instruction)


def from_record(record: Any, string_state_shift: int) -> CodeObject | None:
    """A code object from its `struct python_code_record`; None if the record is incomplete."""
    table = record["table"].tobytes()
    if record["flags"] or record["table_bytes"] > len(table):
        return None
    strings = [
        decode_string(record[name].tobytes(), int(record[f"{name}_length"]), int(record[f"{name}_state"]), shift)
        for name, shift in (("file", string_state_shift), ("name", string_state_shift))
    ]
    if strings[0] is None or strings[1] is None:
        return None
    return CodeObject(strings[0], strings[1], int(record["first_line"]), table[: int(record["table_bytes"])])


def from_memory(read: Read, address: int, key: int, layout: Mapping[str, int]) -> CodeObject | None:
    """A code object read from its process; None if it was freed or replaced.

    layout: the fields of `struct python_layout`.
    """
    try:
        code = read(address, CODE_BYTES)
        table_at = _word(code, layout["code_line_table"])
        if code_key(read, code, layout) != key:
            return None
        file = _string(read, _word(code, layout["code_filename"]), layout)
        name = _string(read, _word(code, layout["code_name"]), layout)
        size = _WORD.unpack(read(table_at + layout["bytes_size"], 8))[0]
        if file is None or name is None or size > _MAX_TABLE_BYTES:
            return None
        first_line = int.from_bytes(code[layout["code_first_line"] :][:4], "little", signed=True)
        table = read(table_at + layout["bytes_data"], size)
        after = read(address, CODE_BYTES)
        if not _is_alive(after, layout) or code_key(read, after, layout) != key:
            return None
        return CodeObject(file, name, first_line, table)
    except (OSError, struct.error):
        return None


def _is_alive(code: bytes, layout: Mapping[str, int]) -> bool:
    """Whether a code object is not freed: its own bytes outlive it, the objects it refers to do not.

    Its reference count falls to zero before its strings go, and then makes place for the allocator's link to the next
    free block, an address above 4 GB. A free-threaded build has its counts elsewhere, and links beside them.
    """
    if layout["header_bytes"] != _HEADER_BYTES:
        return True
    word = _word(code, 0)
    return word & _COUNT != 0 and word & _ABOVE_COUNT == 0


def code_key(read: Read, code: bytes, layout: Mapping[str, int]) -> int:
    """The kernel side's key of a code object (python_code.h, code_key)."""
    part = code[layout["header_bytes"] : layout["code_line_table"] + _WORD.size]
    words = list(struct.unpack(f"<{_KEY_WORDS}Q", part.ljust(_KEY_WORDS * _WORD.size, b"\0")))
    if layout["has_half_word"]:
        words[_HALF_WORD] &= 0xFFFFFFFF
    if layout["is_key_short"]:
        table = _word(code, layout["code_line_table"])
        words += _WORD.unpack(read(table + layout["bytes_size"], _WORD.size))
        words += _TABLE_BEGINNING.unpack(read(table + layout["bytes_data"], _TABLE_BEGINNING.size))
    return reduce(_mixed, words, _FNV_BASIS) or 1


def _mixed(value: int, word: int) -> int:
    value = (value ^ word) * _FNV_PRIME & _MASK
    return value ^ value >> 29


def _word(data: bytes, at: int) -> int:
    return int(_WORD.unpack_from(data, at)[0])


def _string(read: Read, address: int, layout: Mapping[str, int]) -> str | None:
    state = int.from_bytes(read(address + layout["string_state"], 4), "little")
    length = _WORD.unpack(read(address + layout["string_length"], 8))[0]
    shift = layout["string_state_shift"]
    kind = bytes_per_character(state, shift)
    if kind is None or length * kind > _MAX_STRING_BYTES:
        return None
    is_ascii = state >> shift + 4 & 1
    data = address + layout["string_ascii_data" if is_ascii else "string_wide_data"]
    return decode_string(read(data, length * kind), length, state, shift)
