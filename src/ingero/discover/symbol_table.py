"""Finds functions in a file's .symtab, for code that was linked in statically and is not exported.

Such tables have hundreds of thousands of entries, so both the names and the entries are read in pieces, never mapped
(a mapped file that shrinks kills its reader).

Source: System V ABI, gABI chapters 4 (section header, symbol table) and 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ingero.discover.elf import ElfFile, UnreadableElfError
from ingero.elf import Section

_ENTRY = [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
_ENTRY_BYTES = 24  # Elf64_Sym
_SYMTAB, _FUNCTION = 2, 2  # SHT_SYMTAB, STT_FUNC
_PIECE_BYTES = 8 << 20
_MAX_SEARCHED_BYTES = 32 << 20  # CPython's constants take 3 MB


def function_offsets(elf: ElfFile, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """File offsets of functions by name: exported ones, then those in .symtab; see `ElfFile.functions`.

    A program exports of what was linked into it what the libraries beside it refer to, and keeps the rest local.

    Raises:
        UnreadableElfError: the file is damaged.
    """
    wanted = list(dict.fromkeys(names))
    exported = elf.functions(wanted)
    local = [name for name in wanted if name not in exported]
    return exported | (_local_functions(elf, local) if local else {})


def section_contains(elf: ElfFile, section_name: str, text: bytes) -> bool:
    """Whether the bytes of a section hold a text; False where there is no such section."""
    section = next((one for one in elf.image.sections() if one.name == section_name), None)
    return section is not None and any(text in piece for _, piece in _pieces(elf, section, len(text)))


def first_in_section(
    elf: ElfFile, section_name: str, pattern: re.Pattern[bytes], most_bytes: int
) -> re.Match[bytes] | None:
    """The first match in the bytes of a section. most_bytes: as long as a match with what is around it may be."""
    section = next((one for one in elf.image.sections() if one.name == section_name), None)
    if section is None or section.size_bytes > _MAX_SEARCHED_BYTES:
        return None
    found = (pattern.search(piece) for _, piece in _pieces(elf, section, most_bytes))
    return next((match for match in found if match), None)


def _local_functions(elf: ElfFile, names: list[str]) -> dict[str, tuple[int, ...]]:
    sections = elf.image.sections()
    found: dict[str, tuple[int, ...]] = {}
    for table in sections:
        if table.kind == _SYMTAB and table.link < len(sections):
            places = _name_places(elf, sections[table.link], names)
            for name_at, address in _functions_named(elf, table, list(places)):
                offset = elf.file_offset(address)
                if offset is not None and offset not in found.get(places[name_at], ()):
                    found[places[name_at]] = (*found.get(places[name_at], ()), offset)
    return found


def _pieces(elf: ElfFile, section: Section, overlap_bytes: int) -> Iterator[tuple[int, bytes]]:
    """A section's bytes with their place in it; each piece begins with the end of the last one."""
    for begin in range(0, section.size_bytes, _PIECE_BYTES):
        size = min(_PIECE_BYTES + overlap_bytes, section.size_bytes - begin)
        piece = elf.read_at(section.offset + begin, size)
        if len(piece) != size:
            raise UnreadableElfError(elf.path, f"it ends before offset {section.offset + begin + size}")
        yield begin, piece


def _name_places(elf: ElfFile, strings: Section, names: list[str]) -> dict[int, str]:
    """Every place in a string table where one of the names can begin: linkers share the ends of longer names."""
    pattern = re.compile(b"(?:" + b"|".join(re.escape(name.encode()) for name in sorted(names, key=len)) + rb")(?=\0)")
    longest = max(map(len, names)) + 1
    return {
        begin + match.start(): match[0].decode()
        for begin, piece in _pieces(elf, strings, longest)
        for match in pattern.finditer(piece)
    }


def _functions_named(elf: ElfFile, table: Section, places: list[int]) -> Iterator[tuple[int, int]]:
    """(place of the name, address) of the functions whose name begins at one of the places."""
    if not places:
        return
    import numpy as np  # noqa: PLC0415  # where all names are exported it is not needed

    step = _PIECE_BYTES // _ENTRY_BYTES * _ENTRY_BYTES
    for begin in range(0, table.size_bytes, step):
        size = min(step, table.size_bytes - begin)
        raw = elf.read_at(table.offset + begin, size)
        if len(raw) != size:
            raise UnreadableElfError(elf.path, f"it ends before offset {table.offset + begin + size}")
        entries = np.frombuffer(raw[: len(raw) // _ENTRY_BYTES * _ENTRY_BYTES], _ENTRY)
        is_wanted = (entries["info"] & 0xF == _FUNCTION) & (entries["section"] != 0) & np.isin(entries["name"], places)
        for entry in entries[is_wanted]:
            yield int(entry["name"]), int(entry["value"])
