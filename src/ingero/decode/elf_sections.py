"""The bytes of one section of a BPF object, which is our own: a complete 64-bit little-endian ELF file.

Source: System V ABI, gABI chapter 4 (section header).
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct("<4s36xQ10xHHH")  # Elf64_Ehdr: magic, e_shoff, e_shentsize, e_shnum, e_shstrndx
_SECTION = struct.Struct("<I20xQQ24x")  # Elf64_Shdr: sh_name, sh_offset, sh_size


def section_bytes(path: Path, name: str) -> bytes | None:
    """The section called `name`; None if there is none, or the file is none of ours."""
    data = path.read_bytes()
    if len(data) < _HEADER.size or not data.startswith(b"\x7fELF"):
        return None
    _, table_at, entry_bytes, count, names_index = _HEADER.unpack_from(data)
    headers = [_SECTION.unpack_from(data, table_at + index * entry_bytes) for index in range(count)]
    names_at = headers[names_index][1]
    wanted = name.encode() + b"\0"
    for name_at, offset, size in headers:
        if data.startswith(wanted, names_at + name_at):
            return data[offset : offset + size]
    return None
