"""Sections of our own objects, compared with what pyelftools reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from ingero.attach.objects import object_path
from ingero.elf import ElfImage, FileSource, UnreadableImageError


@pytest.mark.parametrize("name", [".BTF", ".BTF.ext", ".rodata", "license"])
def test_a_section_is_what_another_reader_says(name: str) -> None:
    path = object_path("api_calls")
    with path.open("rb") as file:
        assert ElfImage(FileSource(path)).section_bytes(name) == ELFFile(file).get_section_by_name(name).data()


def test_a_section_that_is_not_there_is_none() -> None:
    assert ElfImage(FileSource(object_path("api_calls"))).section_bytes(".BT") is None


def test_a_file_that_is_no_elf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.bpf.o"
    path.write_text("not an object")
    with pytest.raises(UnreadableImageError):
        ElfImage(FileSource(path))
