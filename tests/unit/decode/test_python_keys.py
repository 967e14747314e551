"""The key of a code object: another content is another key, what changes while it lives does not count."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest

from ingero.decode.python_code import CODE_BYTES, code_key

_LATER = {"header_bytes": 16, "code_line_table": 136, "has_half_word": 0, "is_key_short": 0}
_FREE_THREADED = {**_LATER, "header_bytes": 32, "code_line_table": 152}
_3_11 = {**_LATER, "has_half_word": 1, "is_key_short": 1, "bytes_size": 16, "bytes_data": 32}
_3_8 = {**_3_11, "code_line_table": 120, "has_half_word": 0}
_LAYOUTS = {"3.8": _3_8, "3.11": _3_11, "3.13": _LATER, "3.13t": _FREE_THREADED}
_TABLE = 0x4000
_UPPER_HALF = 52  # of the word that holds co_warmup in 3.11


class Memory:
    """A code object whose words all differ, and its line table."""

    def __init__(self, layout: dict[str, Any]) -> None:
        self._layout = layout
        self.code = bytearray(struct.pack(f"<{CODE_BYTES // 8}Q", *range(1000, 1000 + CODE_BYTES // 8)))
        struct.pack_into("<Q", self.code, layout["code_line_table"], _TABLE)
        self.table = bytearray(struct.pack("<16x2Q4Q", 32, 77, *range(2000, 2004)))

    @property
    def key(self) -> int:
        return code_key(self._read, bytes(self.code), self._layout)

    def keys_with_a_bit_changed(self, part: bytearray, places: Iterable[int]) -> list[int]:
        """Of the code object or its table: the key with each bit of these bytes changed, one at a time."""
        keys = []
        for at in places:
            for bit in range(8):
                part[at] ^= 1 << bit
                keys.append(self.key)
                part[at] ^= 1 << bit
        return keys

    def _read(self, address: int, size: int) -> bytes:
        return bytes(self.table[address - _TABLE :][:size])


@pytest.mark.parametrize("name", _LAYOUTS)
def test_each_bit_between_the_header_and_the_line_table_makes_a_key_of_its_own(name: str) -> None:
    layout = _LAYOUTS[name]
    memory = Memory(layout)
    changing = range(_UPPER_HALF, _UPPER_HALF + 4) if layout["has_half_word"] else range(0)
    places = [at for at in range(layout["header_bytes"], layout["code_line_table"]) if at not in changing]
    keys = memory.keys_with_a_bit_changed(memory.code, places)
    assert len({memory.key, *keys}) == 1 + 8 * len(places)


@pytest.mark.parametrize("name", ["3.8", "3.11"])
def test_so_does_each_of_a_line_table_s_size_and_beginning_where_code_has_no_version(name: str) -> None:
    memory = Memory(_LAYOUTS[name])
    places = [*range(16, 24), *range(32, 64)]
    keys = memory.keys_with_a_bit_changed(memory.table, places)
    assert len({memory.key, *keys}) == 1 + 8 * len(places)


@pytest.mark.parametrize("name", _LAYOUTS)
def test_counts_and_what_stands_behind_the_line_table_do_not(name: str) -> None:
    memory = Memory(_LAYOUTS[name])
    key = memory.key
    memory.code[0] ^= 1
    memory.code[_LAYOUTS[name]["code_line_table"] + 8 :] = b""
    assert memory.key == key


def test_what_counts_down_in_3_11_does_not() -> None:
    memory = Memory(_3_11)
    key = memory.key
    memory.code[_UPPER_HALF] ^= 1
    assert memory.key == key


def test_the_hash_that_a_line_table_is_given_late_does_not() -> None:
    memory = Memory(_3_11)
    key = memory.key
    memory.table[24] ^= 1
    assert memory.key == key
