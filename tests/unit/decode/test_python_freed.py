"""A code object that was freed keeps its bytes for a while; what it names belongs to somebody else by then."""

from __future__ import annotations

import struct

import pytest

from ingero.decode.python_code import CodeObject, code_key, from_memory
from tests.unit.python_layout import LAYOUT

_CODE, _FILE, _NAME, _TABLE = 0x1000, 0x2000, 0x3000, 0x4000
_IMMORTAL, _FLAGGED = 0xFFFFFFFF, 0x0040_0000_0000_0001  # counts of 3.12, and of 3.14 with a flag
_LINKED, _LAST = 0x7F12_3456_7890, 0  # the allocator's link to the next free block, and that of the last


class Process:
    """Memory with one code object. count: the first word of the object. reused_after: reads, then it is another's."""

    def __init__(self, count: int, *, reused_after: int = 1000) -> None:
        self._left = reused_after
        code = bytearray(160)
        for at, value in ((0, count), (8, 0x99), (112, _FILE), (128, _NAME), (136, _TABLE), (144, 7)):
            struct.pack_into("<Q", code, at, value)
        struct.pack_into("<I", code, 68, 12)
        self._memory = {_CODE: bytes(code), _FILE: _string("a.py"), _NAME: _string("f")}
        self._memory[_TABLE] = bytes(16) + struct.pack("<Q8xQ", 2, 0)[:16] + b"\x80\x00"
        self.key = code_key(self.read, bytes(code), LAYOUT)

    def read(self, address: int, size: int) -> bytes:
        """As of ProcessMemory."""
        self._left -= 1
        base = address & ~0xFFF
        data = self._memory[base]
        if base == _CODE and self._left < 0:
            data = data[:120] + b"\x01" + data[121:]
        return data[address - base :][:size].ljust(size, b"\0")


def _string(text: str) -> bytes:
    return bytes(16) + struct.pack("<QQQ", len(text), 0, 1 << 2 | 1 << 6) + text.encode()


@pytest.mark.parametrize("count", [1, _IMMORTAL, _FLAGGED])
def test_a_living_code_object_is_read(count: int) -> None:
    process = Process(count)
    found = from_memory(process.read, _CODE, process.key, LAYOUT)
    assert found == CodeObject("a.py", "f", 12, b"\x80\x00")


@pytest.mark.parametrize("count", [_LINKED, _LAST])
def test_a_freed_code_object_is_none_though_its_bytes_are_there(count: int) -> None:
    process = Process(count)
    assert from_memory(process.read, _CODE, process.key, LAYOUT) is None


def test_a_code_object_that_another_replaces_while_it_is_read_is_none() -> None:
    process = Process(1, reused_after=3)
    assert from_memory(process.read, _CODE, process.key, LAYOUT) is None
