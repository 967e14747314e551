"""Reads numbers one after another from a piece of DWARF data that may be damaged.

Source: DWARF 5, section 7.6 (LEB128); Linux Standard Base 5.0, core, 10.5 (DW_EH_PE pointer encodings).
"""

from __future__ import annotations

import struct

_ABSOLUTE, _PC_RELATIVE, _DATA_RELATIVE = 0x00, 0x10, 0x30  # DW_EH_PE_*
_OMITTED = 0xFF
_MAX_LEB_BYTES = 10  # 64 bits in groups of seven
_MASK = (1 << 64) - 1
_FORMATS = {
    0x00: struct.Struct("<Q"),
    0x02: struct.Struct("<H"),
    0x03: struct.Struct("<I"),
    0x04: struct.Struct("<Q"),
    0x0A: struct.Struct("<h"),
    0x0B: struct.Struct("<i"),
    0x0C: struct.Struct("<q"),
}


class DamagedError(ValueError):
    """The data is not what the format allows; readers give up this function, not the process."""


class Cursor:
    """A place in `data`. vaddr: the address of its first byte, for pointers that are relative to where they stand.

    Raises:
        DamagedError: from any method, where the data ends too early or cannot be.
    """

    __slots__ = ("at", "data", "end", "vaddr")

    def __init__(self, data: bytes, vaddr: int = 0) -> None:
        self.data, self.vaddr = data, vaddr
        self.at, self.end = 0, len(data)

    def byte(self) -> int:
        """One unsigned byte."""
        if self.at >= self.end:
            raise DamagedError("it ends in mid-entry")
        value = self.data[self.at]
        self.at += 1
        return value

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size < 0 or self.at + size > self.end:
            raise DamagedError("it ends in mid-entry")
        taken = self.data[self.at : self.at + size]
        self.at += size
        return taken

    def unsigned(self, size: int) -> int:
        """A little-endian integer of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def uleb(self) -> int:
        """An unsigned LEB128 number."""
        value = 0
        for index in range(_MAX_LEB_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value & _MASK
        raise DamagedError("a number has more than 64 bits")

    def sleb(self) -> int:
        """A signed LEB128 number."""
        value = 0
        for index in range(_MAX_LEB_BYTES):
            byte = self.byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value - (1 << (7 * index + 7)) if byte & 0x40 else value
        raise DamagedError("a number has more than 64 bits")

    def text(self) -> str:
        """A string that ends with a zero byte."""
        end = self.data.find(b"\0", self.at, self.end)
        if end < 0:
            raise DamagedError("a string does not end")
        value = self.data[self.at : end].decode("latin-1")
        self.at = end + 1
        return value

    def pointer(self, encoding: int, *, data_vaddr: int = 0) -> int | None:
        """An encoded pointer (DW_EH_PE_*); None if it is left out. data_vaddr: what data-relative ones count from.

        Indirect pointers are returned as the address of the pointer: nothing here follows them.
        """
        if encoding == _OMITTED:
            return None
        base = self.vaddr + self.at
        value = self._number(encoding & 0x0F)
        relative = encoding & 0x70
        if relative == _PC_RELATIVE:
            value += base
        elif relative == _DATA_RELATIVE:
            value += data_vaddr
        elif relative != _ABSOLUTE:
            raise DamagedError(f"a pointer is encoded as {encoding:#x}")
        return value & _MASK

    def _number(self, form: int) -> int:
        if form == 0x01:
            return self.uleb()
        if form == 0x09:
            return self.sleb()
        packed = _FORMATS.get(form)
        if packed is None:
            raise DamagedError(f"a pointer has the form {form:#x}")
        return int(packed.unpack(self.take(packed.size))[0])
