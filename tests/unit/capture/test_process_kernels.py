"""Names of GPU kernels from made-up symbol tables and from what was told of handles."""

from __future__ import annotations

import pytest

from ingero.capture.stacks.process_kernels import NameSource, ProcessKernels
from ingero.capture.stacks.process_stacks import Symbols
from ingero.decode.native.symbols import Symbol, SymbolTable
from ingero.decode.native.unwinder import Module
from ingero.elf import ElfImage

BIAS = 0x7000_0000_0000
STUB, STRIPPED, HANDLE = BIAS + 0x1000, BIAS + 0x2000, 0x5555_0000
RELU = "_ZN2at6native29vectorized_elementwise_kernelILi4EfEEvT0_i"
LONG = "_ZN7cutlass6KernelI" + "N4cute5tupleI" * 30


class OneFile:
    """An address space with one file, 64 KB long."""

    def __init__(self) -> None:
        self.module = Module("libaten.so", BIAS, object())  # type: ignore[arg-type]  # only asked for by identity

    def module_at(self, address: int) -> Module | None:
        """The file, or nothing."""
        return self.module if BIAS <= address < BIAS + 0x10000 else None


class MadeUpTable(SymbolTable):
    """One function, of 16 bytes."""

    def at(self, vaddr: int) -> Symbol | None:
        """Only at the stub."""
        return Symbol(RELU, vaddr - 0x1000) if 0x1000 <= vaddr < 0x1010 else None


class MadeUpSymbols(Symbols):
    """The same table for every file."""

    def of(self, image: ElfImage) -> SymbolTable:
        """The table."""
        return MadeUpTable(image)


@pytest.fixture
def kernels() -> ProcessKernels:
    """Of a process with one file, whose symbols are `RELU` alone."""
    return ProcessKernels(OneFile(), MadeUpSymbols())


def test_a_host_stub_has_the_name_of_its_symbol(kernels: ProcessKernels) -> None:
    name = kernels.name(STUB, 0)
    assert name.text == "void at::native::vectorized_elementwise_kernel<4, float>(float, int)"
    assert (name.short, name.library) == ("at::native::vectorized_elementwise_kernel<...>", "libaten.so")
    assert name.source is NameSource.SYMBOL


def test_a_stub_without_a_symbol_has_the_name_it_was_registered_under(kernels: ProcessKernels) -> None:
    kernels.register(STRIPPED, "_Z4gemmi", is_cut=False)
    assert (kernels.name(STRIPPED, 0).text, kernels.name(STRIPPED, 0).source) == ("gemm(int)", NameSource.REGISTERED)


def test_a_stub_of_which_nothing_is_known_is_its_place_in_the_file(kernels: ProcessKernels) -> None:
    name = kernels.name(STRIPPED, 0)
    assert (name.text, name.short, name.source) == ("libaten.so+0x2000", "libaten.so+0x2000", NameSource.ADDRESS)


def test_an_address_registered_for_two_kernels_has_no_name(kernels: ProcessKernels) -> None:
    kernels.register(STUB, "_Z4gemmi", is_cut=False)
    kernels.register(STUB, "_Z4convi", is_cut=False)
    assert (kernels.name(STUB, 0).text, kernels.name(STUB, 0).source) == (None, NameSource.AMBIGUOUS)


def test_a_handle_that_is_used_again_is_another_kernel_from_then_on(kernels: ProcessKernels) -> None:
    kernels.name_handle(HANDLE, 1, 100, "_Z4gemmi", is_cut=False)
    kernels.name_handle(HANDLE, 2, 200, "_Z4convf", is_cut=False)
    assert [kernels.name(HANDLE, generation).text for generation in (0, 1, 2, 3)] == [
        None,
        "gemm(int)",
        "conv(float)",
        None,
    ]
    assert [kernels.since_ns(HANDLE, generation) for generation in (1, 2, 3)] == [100, 200, None]


def test_a_handle_made_from_a_stub_has_the_name_of_the_stub(kernels: ProcessKernels) -> None:
    kernels.make_handle(HANDLE, 1, 100, STUB)
    assert kernels.name(HANDLE, 1).text == kernels.name(STUB, 0).text


def test_a_handle_made_from_a_handle_keeps_the_name_that_this_one_had_then(kernels: ProcessKernels) -> None:
    kernels.name_handle(HANDLE, 1, 100, "_Z4gemmi", is_cut=False)
    kernels.make_handle(HANDLE + 8, 1, 150, HANDLE)
    kernels.name_handle(HANDLE, 2, 200, "_Z4convf", is_cut=False)
    assert kernels.name(HANDLE + 8, 1).text == "gemm(int)"


def test_handles_made_from_each_other_end_without_a_name(kernels: ProcessKernels) -> None:
    kernels.make_handle(HANDLE, 1, 100, HANDLE + 8)
    kernels.make_handle(HANDLE + 8, 1, 100, HANDLE)
    kernels.make_handle(HANDLE, 1, 100, HANDLE + 8)
    assert kernels.name(HANDLE, 1).text is None


def test_a_name_that_was_cut_is_marked(kernels: ProcessKernels) -> None:
    kernels.name_handle(HANDLE, 1, 100, LONG[:255], is_cut=True)
    assert kernels.name(HANDLE, 1).text == LONG[:255] + "…"


def test_of_a_cut_name_the_stub_knows_the_whole(kernels: ProcessKernels) -> None:
    kernels.name_handle(HANDLE, 1, 100, LONG[:255], is_cut=True)
    kernels.make_handle(HANDLE, 1, 100, STUB)
    assert kernels.name(HANDLE, 1).source is NameSource.SYMBOL


def test_a_child_has_its_parents_stubs_and_none_of_its_handles(kernels: ProcessKernels) -> None:
    kernels.register(STRIPPED, "_Z4gemmi", is_cut=False)
    kernels.name_handle(HANDLE, 1, 100, "_Z4convf", is_cut=False)
    child = ProcessKernels(OneFile(), MadeUpSymbols())
    child.inherit(kernels)
    assert (child.name(STRIPPED, 0).text, child.name(HANDLE, 1).text) == ("gemm(int)", None)


def test_the_same_address_in_two_processes_is_two_functions(kernels: ProcessKernels) -> None:
    other = ProcessKernels(OneFile(), MadeUpSymbols())
    kernels.name_handle(HANDLE, 1, 100, "_Z4gemmi", is_cut=False)
    other.name_handle(HANDLE, 1, 100, "_Z4convf", is_cut=False)
    assert (kernels.name(HANDLE, 1).text, other.name(HANDLE, 1).text) == ("gemm(int)", "conv(float)")
