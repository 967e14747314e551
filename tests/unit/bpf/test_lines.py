"""The objects of a wheel: without lines of source, and for the rest what the compiler made."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any

import bpf_lines
import pytest
from elftools.elf.elffile import ELFFile

from ingero.decode.btf import Btf

OBJECTS = sorted((Path(str(files("ingero"))) / "bpf" / "objects").glob("*/*.bpf.o"))
CHANGED = {".BTF", ".BTF.ext", ".rel.BTF.ext"}
SOURCE_LINE = re.compile(rb"[;{}]|\.[ch]\0|//")


def named(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


@pytest.fixture(params=OBJECTS, ids=named)
def images(request: pytest.FixtureRequest) -> tuple[bytes, bytes]:
    """An object as it was compiled, and as it is in a wheel."""
    whole = request.param.read_bytes()
    return whole, bpf_lines.without_lines(whole)


def sections(image: bytes) -> dict[str, tuple[Any, bytes]]:
    elf: Any = ELFFile(BytesIO(image))
    places = ("sh_offset", "sh_size", "sh_name")
    return {
        section.name: (
            {name: value for name, value in section.header.items() if name not in places},
            b"" if section["sh_type"] == "SHT_NOBITS" else section.data(),
        )
        for section in elf.iter_sections()
    }


def types(image: bytes) -> list[Any]:
    btf = Btf(sections(image)[".BTF"][1])
    return [(one.kind, one.name, one.count, one.size_or_type) for one in btf._types]


def member_names(image: bytes) -> Iterator[str]:
    """Of structures, enumerations and functions, in their order."""
    btf = Btf(sections(image)[".BTF"][1])
    for one in btf._types:
        entry_bytes = bpf_lines._ENTRY_BYTES.get(one.kind, 0) if one.kind != bpf_lines._DATASEC else 0
        for number in range(one.count if entry_bytes else 0):
            (at,) = struct.unpack_from("<I", btf._data, one.at + number * entry_bytes)
            yield btf._string(at)


def records(image: bytes, offset_at: int) -> list[Any]:
    """Of func_info or core_relo, with texts instead of their places."""
    found = sections(image)
    btf, ext = Btf(found[".BTF"][1]), found[".BTF.ext"][1]
    (header_bytes,) = struct.unpack_from("<I", ext, 4)
    at, size = struct.unpack_from("<II", ext, offset_at)
    part = ext[header_bytes + at :][:size]
    answers: list[Any] = []
    record_bytes, at = int.from_bytes(part[:4], "little"), 4
    while at < len(part):
        name_at, count = struct.unpack_from("<II", part, at)
        answers.append(btf._string(name_at))
        at += 8
        for _ in range(count):
            fields = list(struct.unpack_from(f"<{record_bytes // 4}I", part, at))
            answers.append([*fields[:2], *([btf._string(fields[2]), fields[3]] if record_bytes == 16 else [])])
            at += record_bytes
    return answers


FUNC_INFO, LINE_INFO, CORE_RELO = 8, 16, 24


def test_only_what_tells_of_lines_has_changed(images: tuple[bytes, bytes]) -> None:
    whole, shortened = map(sections, images)
    assert list(whole) == list(shortened)
    assert [name for name in whole if whole[name] != shortened[name] and name not in CHANGED] == []


def test_types_functions_and_fields_are_the_same(images: tuple[bytes, bytes]) -> None:
    whole, shortened = images
    if ".BTF.ext" not in sections(whole):
        return
    assert types(whole) == types(shortened)
    assert list(member_names(whole)) == list(member_names(shortened))
    for part in (FUNC_INFO, CORE_RELO):
        assert records(whole, part) == records(shortened, part)
    assert records(whole, FUNC_INFO)


def test_there_are_no_lines_and_no_texts_of_them(images: tuple[bytes, bytes]) -> None:
    whole, shortened = map(sections, images)
    if ".BTF.ext" not in whole:  # it has types only
        assert images[0] == images[1]
        return
    assert SOURCE_LINE.search(Btf(whole[".BTF"][1])._strings)
    assert not SOURCE_LINE.search(Btf(shortened[".BTF"][1])._strings)
    assert struct.unpack_from("<I", shortened[".BTF.ext"][1], LINE_INFO + 4) == (0,)
    assert shortened[".rel.BTF.ext"][1] == b""
    assert len(images[1]) < len(images[0])


def test_it_is_done_once(images: tuple[bytes, bytes]) -> None:
    assert bpf_lines.without_lines(images[1]) == images[1]


@pytest.mark.parametrize(("at", "value"), [(2, 2), (4, 64)], ids=["version", "length of the header"])
@pytest.mark.parametrize("section", [".BTF", ".BTF.ext"])
def test_nothing_is_taken_out_of_what_is_not_known(section: str, at: int, value: int) -> None:
    image = bytearray(OBJECTS[0].read_bytes())
    elf: Any = ELFFile(BytesIO(bytes(image)))
    image[elf.get_section_by_name(section)["sh_offset"] + at] = value
    with pytest.raises(bpf_lines.UnknownFormatError):
        bpf_lines.without_lines(bytes(image))


def test_a_file_that_is_no_object_is_refused() -> None:
    with pytest.raises(bpf_lines.UnknownFormatError):
        bpf_lines.without_lines(b"MZ" + bytes(100))
