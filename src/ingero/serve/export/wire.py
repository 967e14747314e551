"""The wire format of protocol buffers, as far as traces and profiles need it (protobuf.dev, "Encoding").

Encoding by hand, with what repeats kept as bytes, takes half the time of message objects (docs/adr/0026).
"""

from __future__ import annotations

import struct

from ingero.foreign_text import visible

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_DOUBLE = struct.Struct("<d")
_U64 = (1 << 64) - 1
_SMALL = 1 << 14


def _varint(value: int) -> bytes:
    value &= _U64  # negative numbers are sent as their two's complement
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


_SMALL_VARINTS = tuple(_varint(value) for value in range(_SMALL))
_CONTINUED = tuple(bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(_SMALL))


def varint(value: int) -> bytes:
    """A number of up to 64 bits."""
    if value < _SMALL:
        return _SMALL_VARINTS[value] if value >= 0 else _varint(value)
    if value < _SMALL << 14:
        return _CONTINUED[value & 0x3FFF] + _SMALL_VARINTS[value >> 14]
    return _CONTINUED[value & 0x3FFF] + _CONTINUED[value >> 14 & 0x3FFF] + varint(value >> 28)


def varint63(value: int) -> bytes:
    """A number of 0 to 2^63 - 1 in nine bytes always: readers accept leading zeros, and no loop is needed."""
    return (
        _CONTINUED[value & 0x3FFF]
        + _CONTINUED[value >> 14 & 0x3FFF]
        + _CONTINUED[value >> 28 & 0x3FFF]
        + _CONTINUED[value >> 42 & 0x3FFF]
        + _SMALL_VARINTS[value >> 56]
    )


def tag(field: int, wire_type: int) -> bytes:
    """The key before a value: field number and wire type."""
    return _varint(field << 3 | wire_type)


def number(field: int, value: int) -> bytes:
    """A field with an integer, an enumeration or a bool."""
    return tag(field, _VARINT) + varint(value)


def double(field: int, value: float) -> bytes:
    """A field with a floating point number."""
    return tag(field, _FIXED64) + _DOUBLE.pack(value)


def message(field: int, content: bytes) -> bytes:
    """A field with bytes or another message."""
    return tag(field, _BYTES) + varint(len(content)) + content


def text(field: int, value: str, *, keeps_lines: bool = False) -> bytes:
    """A field with text for people: characters that act on a terminal or reverse text are escaped."""
    return message(field, visible(value, keeps_lines=keeps_lines).encode("utf-8", "replace"))


def packed(field: int, values: list[int]) -> bytes:
    """A repeated field of integers."""
    return message(field, b"".join(map(varint, values)))
