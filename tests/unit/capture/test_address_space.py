"""Which file's code lies where, asked of this very process."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ingero.capture.stacks.address_space import MappedImages, ProcessAddressSpace
from ingero.capture.stacks.process_stacks import Symbols
from ingero.decode.native.symbols import SymbolTable

_LIBRARY = "int answer(void) { return 42; }"


def _address_of(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type] # any function pointer


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A shared library of one function."""
    compiler = shutil.which("gcc")
    assert compiler, "gcc is needed: apt-get install gcc"
    path = tmp_path / "libanswer.so"
    subprocess.run([compiler, "-x", "c", "-", "-shared", "-fPIC", "-o", path], input=_LIBRARY.encode(), check=True)
    return path


def test_an_address_in_a_library_is_found_and_named() -> None:
    libc = ctypes.CDLL("libc.so.6")
    space = ProcessAddressSpace(os.getpid(), MappedImages())
    address = _address_of(libc.qsort_r)
    module = space.module_at(address)
    assert module
    assert module.image
    assert module.name == "libc.so.6"
    symbol = SymbolTable(module.image).at(address - module.bias)
    assert symbol
    assert (symbol.name, symbol.offset) == ("qsort_r", 0)


def test_a_library_loaded_later_is_found(library: Path) -> None:
    space = ProcessAddressSpace(os.getpid(), MappedImages())
    assert space.module_at(_address_of(ctypes.CDLL("libc.so.6").getpid))
    module = space.module_at(_address_of(ctypes.CDLL(str(library)).answer))
    assert module
    assert module.name == "libanswer.so"


@pytest.mark.skipif(os.geteuid() != 0, reason="opening a deleted file through its mapping takes a capability")
def test_a_deleted_file_is_read_through_its_mapping(library: Path) -> None:
    address = _address_of(ctypes.CDLL(str(library)).answer)
    library.unlink()
    module = ProcessAddressSpace(os.getpid(), MappedImages()).module_at(address)
    assert module
    assert module.image, "the mapped file is no longer at its path, but still there"


def test_the_vdso_has_an_image_without_a_file() -> None:
    space = ProcessAddressSpace(os.getpid(), MappedImages())
    lines = Path("/proc/self/maps").read_text().splitlines()
    start = next(int(line.split("-")[0], 16) for line in lines if line.endswith("[vdso]"))
    module = space.module_at(start)
    assert module
    assert module.image
    assert module.table()


def test_memory_of_no_file_has_no_module() -> None:
    space = ProcessAddressSpace(os.getpid(), MappedImages())
    assert space.module_at(0x1000) is None


def test_files_are_opened_once_for_all_processes() -> None:
    images = MappedImages()
    address = _address_of(ctypes.CDLL("libc.so.6").getpid)
    one, other = (ProcessAddressSpace(os.getpid(), images).module_at(address) for _ in range(2))
    assert one
    assert other
    assert one.image is other.image


def test_the_files_of_processes_that_are_gone_are_closed_and_no_others(library: Path) -> None:
    images, symbols = MappedImages(), Symbols()
    held = ctypes.CDLL(str(library))
    own = ProcessAddressSpace(os.getpid(), images)
    with subprocess.Popen(["sleep", "60"]) as process:
        gone = ProcessAddressSpace(process.pid, images)
        program = str(Path(f"/proc/{process.pid}/exe").readlink())
        while program not in Path(f"/proc/{process.pid}/maps").read_text():  # Popen does not wait for the mappings
            pass
        for space in (gone, own):
            space.read_mappings()
            for image in space.images():
                symbols.of(image)
        process.kill()
    assert {program, str(library)} <= open_names()
    del gone, space, image
    symbols.keep(images.let_go([own]))
    assert program not in open_names()
    assert str(library) in open_names()
    module = own.module_at(_address_of(held.answer))
    assert module
    assert module.image
    assert symbols.of(module.image).at(_address_of(held.answer) - module.bias)


def open_names() -> set[str]:
    """What this process has open."""
    return {str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
