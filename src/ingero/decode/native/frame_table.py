"""Finds the unwinding row of an instruction in one file: binary search in .eh_frame_hdr, one function run per address.

Nothing is read ahead: a 3 GB library with 350,000 functions costs what the addresses seen cost.

Source: Linux Standard Base 5.0, core, 10.6.2 (.eh_frame_hdr).
"""

from __future__ import annotations

import struct

from ingero.decode.native.call_frames import Common, Function, Row, parse_common, parse_function, row_at
from ingero.decode.native.cursor import Cursor, DamagedError
from ingero.elf import EH_FRAME_HDR, ElfImage

_SORTED_TABLE = 0x3B  # data-relative, signed, 4 bytes: the only form linkers write
_ENTRY = struct.Struct("<ii")
_MAX_ENTRY_BYTES = 1 << 20  # one function's program; the largest seen has 40 KB
_EXTENDED_LENGTH = 0xFFFFFFFF


class FrameTable:
    """The unwinding rows of one file, kept once computed.

    Raises:
        DamagedError: the file has no table that can be searched.
    """

    def __init__(self, image: ElfImage) -> None:
        self._image = image
        header = image.segment(EH_FRAME_HDR)
        if header is None:
            raise DamagedError("it has no .eh_frame_hdr")
        self._vaddr = header.vaddr
        cursor = Cursor(image.read(header.vaddr, 32), header.vaddr)
        version, frames, count, table = cursor.take(4)
        if version != 1 or table != _SORTED_TABLE:
            raise DamagedError("its .eh_frame_hdr has no sorted table")
        cursor.pointer(frames, data_vaddr=header.vaddr)
        self._count = cursor.pointer(count, data_vaddr=header.vaddr) or 0
        self._table_vaddr = header.vaddr + cursor.at
        if self._count * _ENTRY.size > header.file_bytes:
            raise DamagedError(f"its .eh_frame_hdr claims {self._count} functions")
        self._rows: dict[int, Row | None] = {}
        self._common: dict[int, Common] = {}

    def row(self, pc: int) -> Row | None:
        """The row of the instruction at an address of the file; None where no function is known to lie.

        Raises:
            DamagedError: what the file says of this function cannot be.
        """
        if pc not in self._rows:
            self._rows[pc] = self._compute(pc)
        return self._rows[pc]

    def _compute(self, pc: int) -> Row | None:
        index = self._search(pc)
        if index < 0:
            return None
        function = self._function(self._vaddr + self._entry(index)[1])
        return row_at(function, pc) if function.start <= pc < function.end else None

    def _search(self, pc: int) -> int:
        """The last entry that begins at or before an address."""
        wanted, low, high = pc - self._vaddr, 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[0] <= wanted:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _entry(self, index: int) -> tuple[int, int]:
        data = self._image.read(self._table_vaddr + index * _ENTRY.size, _ENTRY.size)
        if len(data) != _ENTRY.size:
            raise DamagedError("its .eh_frame_hdr ends early")
        start, frame = _ENTRY.unpack(data)
        return start, frame

    def _function(self, vaddr: int) -> Function:
        entry = self._read(vaddr)
        distance = entry.unsigned(4)
        common_vaddr = vaddr + 4 - distance
        if not distance:
            raise DamagedError("its .eh_frame_hdr points to no function")
        if common_vaddr not in self._common:
            common = self._read(common_vaddr)
            if common.unsigned(4):
                raise DamagedError("a function has no common entry")
            self._common[common_vaddr] = parse_common(common)
        return parse_function(entry, self._common[common_vaddr])

    def _read(self, vaddr: int) -> Cursor:
        """One entry of .eh_frame, behind its length."""
        length = int.from_bytes(self._image.read(vaddr, 4), "little")
        if length == _EXTENDED_LENGTH or not 4 <= length <= _MAX_ENTRY_BYTES:
            raise DamagedError(f"an entry of .eh_frame has a length of {length}")
        data = self._image.read(vaddr + 4, length)
        if len(data) != length:
            raise DamagedError("an entry of .eh_frame ends early")
        return Cursor(data, vaddr + 4)
