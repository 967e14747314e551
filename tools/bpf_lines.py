"""Takes the lines of source out of a compiled BPF object: its programs and types stay, byte by byte.

A third of an object is the text of its source, and which instruction is of which line of it; a verifier prints them
beside the instructions that it refuses. What a program needs to be loaded and fitted to a kernel is all there: types,
functions (func_info), and which fields are to be looked up (CO-RE).
Source: Linux Documentation/bpf/btf.rst; the layout of ELF: System V gABI, chapter 4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_SECTION = struct.Struct("<IIQQQQIIQQ")
_TABLE_AT, _ENTRY_AT = 40, 58  # in the header of the file
_NO_BITS = 8  # SHT_NOBITS: takes no room in the file
_BTF = struct.Struct("<HBBIIIII")
_BTF_EXT = struct.Struct("<HBBIIIIIII")
_MAGIC = 0xEB9F
_TYPE = struct.Struct("<III")
_INT, _ARRAY, _STRUCT, _UNION, _ENUM, _FUNC_PROTO, _VAR, _DATASEC, _DECL_TAG, _ENUM64 = (
    1,
    3,
    4,
    5,
    6,
    13,
    14,
    15,
    17,
    19,
)
_TAIL_BYTES = {_INT: 4, _ARRAY: 12, _VAR: 4, _DECL_TAG: 4}
_ENTRY_BYTES = {_STRUCT: 12, _UNION: 12, _ENUM: 8, _FUNC_PROTO: 8, _DATASEC: 12, _ENUM64: 12}
_NEWEST_KIND = 19
_STRING_OF_RELOCATION = 8  # struct bpf_core_relo: insn_off, type_id, access_str_off, kind


class UnknownFormatError(Exception):
    """The object has something that this does not know, so nothing may be taken out of it."""


def without_lines(image: bytes) -> bytes:
    """The object without line information.

    Raises:
        UnknownFormatError: its form is not the one known here.
    """
    headers = _section_headers(image)
    bodies = [b"" if kind == _NO_BITS else image[at : at + size] for _, kind, _, _, at, size, *_ in headers]
    names = bodies[struct.unpack_from("<HHH", image, _ENTRY_AT)[2]]
    index = {names[one[0] : names.index(0, one[0])]: number for number, one in enumerate(headers)}
    if b".BTF.ext" not in index:  # it has types only
        return image
    btf, ext = index[b".BTF"], index[b".BTF.ext"]
    bodies[btf], bodies[ext] = _shortened(bodies[btf], bodies[ext])
    if b".rel.BTF.ext" in index:  # where its instructions are: a linker's; a loader knows it by the numbers themselves
        bodies[index[b".rel.BTF.ext"]] = b""
    return _assembled(image, headers, bodies)


def _section_headers(image: bytes) -> list[tuple[int, ...]]:
    (at,) = struct.unpack_from("<Q", image, _TABLE_AT)
    entry_bytes, count, _ = struct.unpack_from("<HHH", image, _ENTRY_AT)
    if image[:6] != b"\x7fELF\x02\x01" or entry_bytes != _SECTION.size:
        raise UnknownFormatError("it is no 64-bit little-endian ELF file")
    return [_SECTION.unpack_from(image, at + number * entry_bytes) for number in range(count)]


def _assembled(image: bytes, headers: list[tuple[int, ...]], bodies: list[bytes]) -> bytes:
    """The sections one after the other in the order that they had, each aligned, then their headers."""
    made, placed = bytearray(image[:64]), list(headers)
    for number in sorted(range(1, len(headers)), key=lambda number: headers[number][4]):
        name, kind, flags, address, _, size, link, info, alignment, entry_bytes = headers[number]
        made += bytes(-len(made) % max(alignment, 1))
        size = size if kind == _NO_BITS else len(bodies[number])
        placed[number] = (name, kind, flags, address, len(made), size, link, info, alignment, entry_bytes)
        made += bodies[number]
    made += bytes(-len(made) % 8)
    struct.pack_into("<Q", made, _TABLE_AT, len(made))
    return bytes(made + b"".join(_SECTION.pack(*one) for one in placed))


def _shortened(btf: bytes, ext: bytes) -> tuple[bytes, bytes]:
    """.BTF with the texts that are still asked for, .BTF.ext without line_info."""
    magic, version, flags, header_bytes, types_at, types_bytes, texts_at, texts_bytes = _BTF.unpack_from(btf)
    if (magic, version, header_bytes) != (_MAGIC, 1, _BTF.size):
        raise UnknownFormatError(".BTF is of another version")
    types = bytearray(btf[header_bytes + types_at :][:types_bytes])
    functions, relocations = _parts_of_ext(ext)
    texts = _Texts(btf[header_bytes + texts_at :][:texts_bytes])
    for part, places in (
        (types, _names_in_types(types)),
        (functions, _names_in_records(functions, None)),
        (relocations, _names_in_records(relocations, _STRING_OF_RELOCATION)),
    ):
        for at in list(places):
            struct.pack_into("<I", part, at, texts.moved(*struct.unpack_from("<I", part, at)))
    header = _BTF.pack(magic, version, flags, _BTF.size, 0, len(types), len(types), len(texts.kept))
    ends = len(functions), len(functions) + len(relocations)
    ext_header = _BTF_EXT.pack(
        *(_MAGIC, 1, 0, _BTF_EXT.size, 0, len(functions)), *(ends[0], 0), *(ends[0], len(relocations))
    )
    return header + bytes(types) + bytes(texts.kept), ext_header + bytes(functions) + bytes(relocations)


def _parts_of_ext(ext: bytes) -> tuple[bytearray, bytearray]:
    """func_info and core_relo."""
    magic, version, _, header_bytes, functions_at, functions_bytes, _, _, relocations_at, relocations_bytes = (
        _BTF_EXT.unpack_from(ext)
    )
    if (magic, version, header_bytes) != (_MAGIC, 1, _BTF_EXT.size):
        raise UnknownFormatError(".BTF.ext is of another version")
    body = ext[header_bytes:]
    return (
        bytearray(body[functions_at:][:functions_bytes]),
        bytearray(body[relocations_at:][:relocations_bytes]),
    )


class _Texts:
    """Texts that are asked for, each once, in the order in which they are. kept: them, as a table."""

    def __init__(self, all_texts: bytes) -> None:
        self._all, self._places = all_texts, {b"": 0}
        self.kept = bytearray(1)

    def moved(self, at: int) -> int:
        """Where a text of the old table is in the new one."""
        text = self._all[at : self._all.index(0, at)]
        if text not in self._places:
            self._places[text] = len(self.kept)
            self.kept += text + b"\0"
        return self._places[text]


def _names_in_types(types: bytearray) -> Iterator[int]:
    """Where the types name something."""
    at = 0
    while at < len(types):
        yield at
        kind, count = types[at + 7] & 31, int.from_bytes(types[at + 4 : at + 6], "little")
        if not 0 < kind <= _NEWEST_KIND:
            raise UnknownFormatError(f"a type of kind {kind}")
        at += _TYPE.size + _TAIL_BYTES.get(kind, 0)
        entry_bytes = _ENTRY_BYTES.get(kind, 0)
        if kind != _DATASEC:  # whose entries are types, places and sizes
            yield from range(at, at + entry_bytes * count, entry_bytes or 1)
        at += entry_bytes * count


def _names_in_records(part: bytearray, name_at: int | None) -> Iterator[int]:
    """Where a part of .BTF.ext names a section, and each of its records, at a place in it, a text."""
    if not part:
        return
    record_bytes = int.from_bytes(part[:4], "little")
    at = 4
    while at < len(part):
        yield at
        (count,) = struct.unpack_from("<I", part, at + 4)
        at += 8
        if name_at is not None:
            yield from range(at + name_at, at + count * record_bytes, record_bytes)
        at += count * record_bytes
