"""Files that lie: every byte of them may be wrong, and nothing may come of it but a named ending."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingero.decode.native.cursor import Cursor, DamagedError
from ingero.decode.native.expressions import evaluate
from ingero.decode.native.machines import MACHINES
from ingero.decode.native.symbols import SymbolTable
from ingero.decode.native.unwinder import Ending, Module, unwind
from ingero.elf import EH_FRAME_HDR, ElfImage, FileSource, MemorySource, UnreadableImageError
from tests.unit.native_stacks import CopiedStack, FilesOnDisk, run_target

MANY = settings(
    max_examples=int(os.environ.get("INGERO_FUZZ", "200")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)

_CHANGES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=40)


class Replaced:
    """An address space in which one file has other content."""

    def __init__(self, space: FilesOnDisk, name: str, image: ElfImage) -> None:
        self._space, self._name, self._image = space, name, image
        self._module: Module | None = None

    def module_at(self, address: int) -> Module | None:
        """As in AddressSpace."""
        module = self._space.module_at(address)
        if module is None or module.name != self._name:
            return module
        if self._module is None:
            self._module = Module(module.name, module.bias, self._image)
        return self._module


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, CopiedStack], FilesOnDisk]:
    """A program and the copies it took of its stack."""
    path, program = run_target(tmp_path_factory.mktemp("damaged"), "-O2 -s")
    return path, program.copies, program.space


@given(changes=_CHANGES)
@MANY
def test_a_lying_frame_table_ends_the_walk_and_never_crashes(
    target: tuple[Path, dict[str, CopiedStack], FilesOnDisk], changes: list[tuple[int, int]]
) -> None:
    path, copies, space = target
    content = bytearray(path.read_bytes())
    header = ElfImage(FileSource(path)).segment(EH_FRAME_HDR)
    assert header
    for at, value in changes:  # .eh_frame follows its header
        content[min(header.offset + at % (8 * header.file_bytes), len(content) - 1)] = value
    image = ElfImage(MemorySource(bytes(content)))
    found = unwind(copies["realigned"].thread, Replaced(space, str(path), image))
    assert isinstance(found.ending, Ending)
    is_call, size = MACHINES["x86_64"].is_call, MACHINES["x86_64"].call_bytes
    for frame in found.frames[1:]:
        assert frame.module
        assert frame.module.image
        at = frame.address - frame.module.bias
        assert is_call(frame.module.image.read(at - size, size)), "a frame that no call made"


@given(changes=_CHANGES, kept=st.integers(0, 1 << 17))
@MANY
def test_a_damaged_file_is_refused_or_read_but_never_crashes(
    target: tuple[Path, dict[str, CopiedStack], FilesOnDisk], changes: list[tuple[int, int]], kept: int
) -> None:
    content = bytearray(target[0].read_bytes())
    for at, value in changes:  # the program headers come first, the section headers last
        content[at % 1024 if at & 1 else -1 - at % 2200] = value
    try:
        image = ElfImage(MemorySource(bytes(content[:kept])))
    except UnreadableImageError:
        return
    SymbolTable(image).at(0x1200)
    image.read(0x1000, 64)
    Module("target", 0, image).table()


@given(st.binary(max_size=40), st.lists(st.one_of(st.none(), st.integers(0, (1 << 64) - 1)), max_size=20))
@MANY
def test_any_bytes_are_an_expression_or_damaged(expression: bytes, registers: list[int | None]) -> None:
    try:
        value = evaluate(expression, registers, lambda address: address ^ 0xFF, 16)
    except DamagedError:
        return
    assert 0 <= value < 1 << 64


@given(st.binary(max_size=24), st.integers(0, 255))
@MANY
def test_any_bytes_are_numbers_or_damaged(data: bytes, encoding: int) -> None:
    for read in (Cursor.uleb, Cursor.sleb, Cursor.text, lambda cursor: Cursor.pointer(cursor, encoding)):
        with suppress(DamagedError):
            read(Cursor(data))
