"""Stacks of an arm64 program with signed return addresses, recorded once (tests/data/unwind_aarch64/README.md)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from ingero.decode.native.unwinder import Ending, Module, unwind
from ingero.discover.mappings import parse_maps
from ingero.elf import ElfImage, MemorySource
from tests.unit.native_stacks import CopiedStack, function_names, read_copies

_RECORDED = Path(__file__).parents[2] / "data" / "unwind_aarch64" / "recorded.tar.xz"


class OneProgram:
    """An address space in which only the program itself is mapped."""

    def __init__(self, image: ElfImage, maps: bytes) -> None:
        self._ranges = [one for one in parse_maps(maps) if "x" in one.permissions]
        bias = image.bias(self._ranges[0].start, self._ranges[0].offset)
        assert bias is not None
        self._module = Module("target", bias, image)

    def module_at(self, address: int) -> Module | None:
        """As in AddressSpace."""
        return self._module if any(one.start <= address < one.end for one in self._ranges) else None


@pytest.fixture(scope="module")
def recorded() -> tuple[dict[str, CopiedStack], OneProgram]:
    """The copies, and the program that they were taken in."""
    with tarfile.open(_RECORDED) as archive:
        files = {one.name: archive.extractfile(one) for one in archive}
        data = {name: stream.read() for name, stream in files.items() if stream}
    space = OneProgram(ElfImage(MemorySource(data["target"])), data["maps"])
    return read_copies(data["copies"], "aarch64", 33), space


@pytest.mark.parametrize(
    ("name", "own_frames"), [("plain", 2), ("recursion", 32), ("alloca", 3), ("realigned", 3), ("arguments", 3)]
)
def test_an_arm64_stack_is_the_one_that_libgcc_sees(
    recorded: tuple[dict[str, CopiedStack], OneProgram], name: str, own_frames: int
) -> None:
    copies, space = recorded
    stack = unwind(copies[name].thread, space)
    assert stack.ending is Ending.NO_FILE, stack.detail  # the C library, which was not kept
    assert [frame.address for frame in stack.frames[1:]] == copies[name].expected[:own_frames]


def test_functions_of_another_machine_have_names(recorded: tuple[dict[str, CopiedStack], OneProgram]) -> None:
    copies, space = recorded
    names = function_names(unwind(copies["alloca"].thread, space))
    assert names == ["take", "leaf_call", "with_alloca", "main"]
