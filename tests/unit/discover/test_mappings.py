"""discover.mappings: lines of /proc/PID/maps."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ingero.discover.library_files import MAPPED_NAME
from ingero.discover.mappings import Mapping, mappings_named, parse_maps, read_maps

LINE = b"7f00-7f80 r-xp 00001000 fe:01 42                         %s\n"


def only(raw: bytes) -> Mapping:
    (mapping,) = parse_maps(raw)
    return mapping


def test_every_field_of_a_line_is_read() -> None:
    mapping = only(LINE % b"/usr/lib/libcudart.so.12")
    assert mapping == Mapping(
        start=0x7F00,
        end=0x7F80,
        permissions="r-xp",
        offset=0x1000,
        device=os.makedev(0xFE, 1),
        inode=42,
        path="/usr/lib/libcudart.so.12",
        is_deleted=False,
    )


def test_blanks_in_a_path_are_kept() -> None:
    assert only(LINE % b"/home/a b/my  libs/x.so").path == "/home/a b/my  libs/x.so"


def test_a_newline_in_a_path_is_unescaped() -> None:
    assert only(LINE % b"/tmp/a\\012b").path == "/tmp/a\nb"


def test_a_deleted_file_is_marked_and_its_path_cleaned() -> None:
    mapping = only(LINE % b"/tmp/x.so (deleted)")
    assert (mapping.path, mapping.is_deleted) == ("/tmp/x.so", True)


def test_anonymous_memory_has_no_path() -> None:
    assert only(b"7f00-7f80 rw-p 00000000 00:00 0 \n").path == ""


def test_the_name_of_the_range_is_that_of_map_files() -> None:
    mapping = next(one for one in parse_maps(read_maps(os.getpid())) if one.path.startswith("/"))
    assert (Path("/proc/self/map_files") / mapping.range_name).is_symlink()


def test_the_maps_of_this_process_are_read_completely() -> None:
    raw = read_maps(os.getpid())
    assert len(list(parse_maps(raw))) == raw.count(b"\n")


def test_only_matching_lines_are_read() -> None:
    raw = LINE % b"/a/libc.so.6" + LINE % b"/b/libcuda.so.1" + LINE % b"" + LINE % b"/c/libnccl.so.2 (deleted)"
    assert [one.path for one in mappings_named(raw, MAPPED_NAME)] == ["/b/libcuda.so.1", "/c/libnccl.so.2"]


def test_a_folder_named_like_a_library_is_no_match() -> None:
    assert list(mappings_named(LINE % b"/x/libcuda.so.1/libfoo.so", MAPPED_NAME)) == []


PATHS = st.sampled_from([b"", b"[heap]", b"/l/libc.so.6", b"/l/libcuda.so.1", b"/a b/libcudart.so.12 (deleted)"])


@given(st.lists(PATHS))
def test_the_quick_search_finds_what_reading_every_line_finds(paths: list[bytes]) -> None:
    raw = b"".join(LINE % path for path in paths)
    slow = [one for one in parse_maps(raw) if re.search(r"/lib(cuda|cudart)\.so", one.path)]
    assert list(mappings_named(raw, MAPPED_NAME)) == slow
