"""discover.memory_files: what a process was started with, and what it maps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingero.discover import memory_files
from ingero.discover.memory_files import Environ, LaunchedWith, MemoryFiles, command_line, environment, variables


def launched_with(environ: bytes | None, line: bytes | None = b"python\0") -> LaunchedWith:
    return LaunchedWith(environ, line)


def test_own_process_is_read_whole() -> None:
    found = MemoryFiles().launched_with(os.getpid())
    assert found.environ == Path("/proc/self/environ").read_bytes()
    assert found.command_line == Path("/proc/self/cmdline").read_bytes()
    assert b"/libc" in MemoryFiles().maps(os.getpid())


def test_of_a_process_that_is_gone_nothing_is_known(tmp_path: Path) -> None:
    assert MemoryFiles(tmp_path).launched_with(7) == LaunchedWith(None, None)
    with pytest.raises(FileNotFoundError):
        MemoryFiles(tmp_path).maps(7)


def test_more_mappings_than_any_program_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_files, "MAX_MAPS_BYTES", 10)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_bytes(b"x" * 10)
    assert MemoryFiles(tmp_path).maps(7) == b"x" * 10
    (tmp_path / "7/maps").write_bytes(b"x" * 11)
    with pytest.raises(OSError, match="too many mappings"):
        MemoryFiles(tmp_path).maps(7)


def test_an_empty_argument_stays_in_the_command_line_only_between_others() -> None:
    assert command_line(launched_with(None, b"python\0\0x\0")) == ("python", "", "x")
    assert command_line(launched_with(None, b"")) == command_line(launched_with(None, None)) == ()


def test_the_environment_keeps_equals_signs_in_values() -> None:
    assert variables(launched_with(b"A=b=c\0EMPTY=\0broken\0")) == {"A": "b=c", "EMPTY": ""}
    assert variables(launched_with(None)) is None


def test_environment_and_command_line_are_read_up_to_a_bound(tmp_path: Path) -> None:
    process = tmp_path / "7"
    process.mkdir()
    (process / "environ").write_bytes(b"RANK=1\0BAD=\xff\0LONG=" + b"x" * (3 << 20))
    (process / "cmdline").write_bytes(b"x" * (3 << 20))
    found = MemoryFiles(tmp_path).launched_with(7)
    environ = variables(found)
    assert environ is not None
    assert (environ["RANK"], environ["BAD"]) == ("1", "\ufffd")
    assert len(environ["LONG"]) <= 1 << 20
    assert len(found.command_line or b"") == 64 << 10


@pytest.mark.parametrize(
    ("raw", "line", "state", "pairs"),
    [
        (b"RANK=1\0A=b\0", b"python\0train.py\0", Environ.WHOLE, {"RANK": "1", "A": "b"}),
        (b"", b"python\0", Environ.EMPTY, {}),
        (b"\0\0\0\0", b"title\0", Environ.WIPED, {}),
        (b"xxxx\0CUDA_VISIBLE_DEVICES=1\0", b"VLLM::Worker_TP1xxxx\0", Environ.WIPED, {"CUDA_VISIBLE_DEVICES": "1"}),
        (b"b=2)\0RANK=1\0", b"ray::f(a=1, b=2)\0", Environ.WIPED, {"RANK": "1"}),  # the end of the title
    ],
)
def test_a_title_over_the_environment_is_told_from_none(
    raw: bytes, line: bytes, state: Environ, pairs: dict[str, str]
) -> None:
    assert environment(launched_with(raw, line)) == (pairs, state)


def test_an_environment_that_may_not_be_read_is_not_an_empty_one() -> None:
    assert environment(launched_with(None)) == ({}, Environ.UNREADABLE)
