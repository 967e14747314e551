"""Finds the source line of a Python instruction in the line table of its code object.

Source: CPython, Objects/lnotab_notes.txt (up to 3.9 and 3.10) and InternalDocs/code_objects.md (from 3.11).
"""

from __future__ import annotations

_NO_LINE_310 = -128
_NO_LOCATION, _LONG, _NO_COLUMNS, _ONE_LINE_FIRST, _ONE_LINE_LAST = 15, 14, 13, 10, 12  # 3.11: location kinds
_UNIT_BYTES = 2
_MAX_BITS = 36  # of a line, six at a time: CPython's lines have 32


def line_of(version: tuple[int, int], table: bytes, first_line: int, offset: int) -> int | None:
    """The line of the instruction at a byte offset of the code; None if the compiler gave it none.

    table: co_lnotab up to 3.9, co_linetable from 3.10. A damaged table yields None or the last line before the damage.
    """
    if version >= (3, 11):
        return _location_table(table, first_line, offset)
    if version == (3, 10):
        return _line_table(table, first_line, offset)
    return _lnotab(table, first_line, offset)


def _lnotab(table: bytes, line: int, offset: int) -> int:
    address = 0
    for index in range(0, len(table) - 1, 2):
        address += table[index]
        if address > offset:
            break
        line += _signed(table[index + 1])
    return line


def _line_table(table: bytes, line: int, offset: int) -> int | None:
    end = 0
    for index in range(0, len(table) - 1, 2):
        start, end = end, end + table[index]
        delta = _signed(table[index + 1])
        if delta != _NO_LINE_310:
            line += delta
        if start <= offset < end:
            return None if delta == _NO_LINE_310 else line
    return None


def _location_table(table: bytes, line: int, offset: int) -> int | None:
    at = start = 0
    while at < len(table):
        code, end = table[at] >> 3 & 15, start + ((table[at] & 7) + 1) * _UNIT_BYTES
        at += 1
        if code in (_LONG, _NO_COLUMNS):
            line += _signed_varint(table, at)
        elif _ONE_LINE_FIRST <= code <= _ONE_LINE_LAST:
            line += code - _ONE_LINE_FIRST
        if start <= offset < end:
            return None if code == _NO_LOCATION else line
        start = end
        while at < len(table) and not table[at] & 0x80:  # every entry begins with a byte that has this bit
            at += 1
    return None


def _signed_varint(table: bytes, at: int) -> int:
    value = shift = 0
    while at < len(table) and shift < _MAX_BITS:
        byte = table[at]
        value |= (byte & 63) << shift
        if not byte & 64:
            break
        shift += 6
        at += 1
    return -(value >> 1) if value & 1 else value >> 1


def _signed(byte: int) -> int:
    return byte - 256 if byte >= 128 else byte
