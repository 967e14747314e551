"""Unwinding real stacks, taken by a C program in places that are hard to unwind; libgcc says what is right."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import pytest

from ingero.decode.native.unwinder import MAX_FRAMES, Ending, Module, unwind
from tests.unit.native_stacks import FilesOnDisk, Program, function_names, run_target


@pytest.fixture(
    scope="module", params=["-O0", "-O2", "-O3 -fcf-protection=full", "-O2 -fno-omit-frame-pointer -no-pie"]
)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The C program, built with several kinds of code."""
    return run_target(tmp_path_factory.mktemp("unwind"), request.param)[1]


@pytest.mark.parametrize(
    "name", ["plain", "recursion", "alloca", "realigned", "libc callback", "signal", "fault", "thread", "arguments"]
)
def test_a_stack_is_the_one_that_libgcc_sees(program: Program, name: str) -> None:
    stack = program.unwind(name)
    assert stack.ending is Ending.COMPLETE, stack.detail
    assert [frame.address for frame in stack.frames[1:]] == program.copies[name].expected


def test_a_deep_stack_is_cut_and_says_so(program: Program) -> None:
    stack = program.unwind("too deep")
    assert stack.ending is Ending.TOO_DEEP
    assert [frame.address for frame in stack.frames[1:]] == program.copies["too deep"].expected[: MAX_FRAMES - 1]


@pytest.mark.parametrize("kept", [8, 64, 200, 1000, 1500])
def test_a_short_copy_gives_the_first_frames_and_says_so(program: Program, kept: int) -> None:
    taken = program.copies["recursion"]
    stack = unwind(replace(taken.thread, stack=taken.thread.stack[:kept]), program.space)
    assert stack.ending is Ending.TRUNCATED
    assert [frame.address for frame in stack.frames[1:]] == taken.expected[: len(stack.frames) - 1]


def test_an_interrupted_function_is_looked_up_where_it_was_interrupted(program: Program) -> None:
    names = function_names(program.unwind("fault"))
    assert names[names.index("on_fault") + 2 : names.index("main")] == ["faults_at_once", "in_fault"]


def test_a_false_return_address_ends_the_walk(program: Program) -> None:
    taken = program.copies["recursion"]
    stack = bytearray(taken.thread.stack)
    outer = struct.pack("<Q", taken.expected[-1])
    at = stack.index(outer)
    stack[at : at + 8] = struct.pack("<Q", taken.expected[-1] + 3)  # in the same function, but behind no call
    found = unwind(replace(taken.thread, stack=bytes(stack)), program.space)
    assert found.ending is Ending.NOT_A_CALL
    assert [frame.address for frame in found.frames[1:]] == taken.expected[:-1]


def test_a_caller_behind_a_return_probe_is_found(program: Program) -> None:
    """The kernel puts its trampoline in the place of a probed call's return address, and we note the original."""
    taken = program.copies["plain"]
    trampoline = 0x7FFFFFFFE000
    stack = bytearray(taken.thread.stack)
    at = stack.index(struct.pack("<Q", taken.expected[1]))
    stack[at : at + 8] = struct.pack("<Q", trampoline)
    hidden = replace(taken.thread, stack=bytes(stack), probed={taken.thread.stack_vaddr + at: taken.expected[1]})
    found = unwind(hidden, _WithTrampoline(program.space, trampoline))
    assert found.ending is Ending.COMPLETE
    assert [frame.address for frame in found.frames[1:]] == taken.expected
    foreign = unwind(replace(hidden, probed={}), _WithTrampoline(program.space, trampoline))
    assert foreign.ending is Ending.FOREIGN_PROBE
    assert [frame.address for frame in foreign.frames[1:]] == taken.expected[:1]


@pytest.mark.parametrize("name", ["plain", "recursion", "alloca", "libc callback", "thread", "arguments"])
def test_a_stack_that_differs_in_all_but_the_deciding_words_has_the_same_chain(program: Program, name: str) -> None:
    thread = program.copies[name].thread
    stack = program.unwind(name)
    kept = {word.address for word in stack.words if word}
    assert None not in stack.words
    other = bytearray(b"\xa5" * len(thread.stack))
    for at in range(0, len(thread.stack) - 7, 8):
        if thread.stack_vaddr + at in kept:
            other[at : at + 8] = thread.stack[at : at + 8]
    assert unwind(replace(thread, stack=bytes(other)), program.space) == stack


def test_every_return_address_is_a_deciding_word(program: Program) -> None:
    thread = program.copies["recursion"].thread
    stack = program.unwind("recursion")
    values = [
        struct.unpack_from("<Q", thread.stack, word.address - thread.stack_vaddr)[0]
        for word in stack.words
        if word and word.address and not word.is_relative
    ]
    assert values[: len(stack.frames) - 1] == [frame.address for frame in stack.frames[1:]]


def test_what_is_counted_by_an_expression_is_not_said_to_be_decided(program: Program) -> None:
    assert None in program.unwind("signal").words


@dataclass(frozen=True)
class _WithTrampoline:
    space: FilesOnDisk
    trampoline: int

    def module_at(self, address: int) -> Module | None:
        if address == self.trampoline:
            return Module("[uprobes]", address, None, is_trampoline=True)
        return self.space.module_at(address)


def test_code_of_no_file_ends_the_walk(program: Program) -> None:
    taken = program.copies["plain"]
    registers = [*taken.thread.registers[:16], 0x1000]
    found = unwind(replace(taken.thread, registers=registers), program.space)
    assert (found.ending, found.frames) == (Ending.NO_FILE, ())
