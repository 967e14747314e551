"""Whose freed code objects are counted: who is there for a while, and frees few."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from ingero.attach.libbpf import Link
from ingero.capture.foreign.memory_reader import MemoryReader
from ingero.capture.stacks.freed_code import FreedCode
from ingero.discover.freed_code import Destructor, NoDestructorError
from ingero.discover.interpreters import Interpreter

IMAGE = 1_000


class Kernel:
    """A kernel side that says what is attached to which slot."""

    def __init__(self) -> None:
        self.freed_code = self
        self.attached: dict[int, int] = {}  # image by slot
        self.freed = 0
        self.now = 0.0

    def image_at(self, slot: int, pid: int) -> int | None:
        return IMAGE + slot if pid else None

    def attach(self, pid: int, slot: int, image: int, path: str, offset: int) -> Link:
        assert (pid, path, offset) == (1, "python", 64)
        self.attached[slot] = image
        return Link(lambda: self.attached.__delitem__(slot))

    def count(self, slot: int) -> int:
        assert slot in self.attached
        return self.freed


def target(number: int, pid: int = 1) -> Any:
    return SimpleNamespace(number=number, slot=number + 10, pid=pid)


def interpreter(*, counts: bool = False) -> Any:
    return SimpleNamespace(layout=SimpleNamespace(offsets={"interpreter.freed_code": 8} if counts else {}))


class Memory(MemoryReader):
    """Of processes whose destructor is known, or is none; is_held: somebody withholds his memory."""

    is_held, is_known = False, True

    def destructor(self, pid: int, interpreter: Interpreter) -> Destructor:
        del pid, interpreter
        if not self.is_known:
            raise NoDestructorError("a probe would be single-stepped")
        return Destructor(path="python", offset=64)

    def may_probe(self) -> bool:
        return not self.is_held


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def freed(kernel: Kernel, memory: Memory) -> FreedCode:
    return FreedCode(kernel, memory, lambda: kernel.now)  # type: ignore[arg-type]  # what it uses of it


def after(seconds: float, kernel: Kernel, freed: FreedCode) -> dict[int, int]:
    kernel.now += seconds
    freed.settle()
    freed._detaching.shutdown()
    freed._detaching = ThreadPoolExecutor(1)
    return kernel.attached


def test_who_ends_within_a_second_is_left_alone(kernel: Kernel, freed: FreedCode) -> None:
    freed.begin(target(1), interpreter())
    freed.begin(target(2), interpreter())
    assert after(0.9, kernel, freed) == {}
    freed.end(1)
    assert after(0.2, kernel, freed) == {12: IMAGE + 12}
    freed.end(2)
    assert after(0, kernel, freed) == {}


def test_an_interpreter_that_counts_itself_needs_no_probe(kernel: Kernel, freed: FreedCode) -> None:
    freed.begin(target(1), interpreter(counts=True))
    assert after(5, kernel, freed) == {}


def test_who_frees_too_many_pays_no_longer(kernel: Kernel, freed: FreedCode) -> None:
    freed.begin(target(1), interpreter())
    assert after(1, kernel, freed)
    kernel.freed += 1900
    assert after(2, kernel, freed), "950 a second are few"
    kernel.freed += 2100
    assert after(2, kernel, freed) == {}
    kernel.freed = 0
    assert after(60, kernel, freed) == {}, "for good"


def test_another_program_is_looked_at_anew(kernel: Kernel, freed: FreedCode) -> None:
    freed.begin(target(1), interpreter())
    assert after(1, kernel, freed)
    freed.begin(target(1), interpreter())
    assert after(0.5, kernel, freed) == {}
    assert after(0.5, kernel, freed)


def test_a_slot_that_is_another_process_s_gets_no_probe(kernel: Kernel, freed: FreedCode) -> None:
    freed.begin(target(1, pid=0), interpreter())
    assert after(1, kernel, freed) == {}


def test_where_no_destructor_is_found_each_code_object_is_read(
    kernel: Kernel, freed: FreedCode, memory: Memory
) -> None:
    memory.is_known = False
    freed.begin(target(1), interpreter())
    assert after(1, kernel, freed) == {}


def test_nothing_is_probed_while_somebody_withholds_his_memory(
    kernel: Kernel, freed: FreedCode, memory: Memory
) -> None:
    """Who runs the same Python maps the same file, and a probe on that waits for each of them."""
    memory.is_held = True
    freed.begin(target(1), interpreter())
    assert after(1, kernel, freed) == {}
    memory.is_held = False
    assert after(1, kernel, freed)


def test_closing_detaches_all(kernel: Kernel, freed: FreedCode) -> None:
    for number in (1, 2, 3):
        freed.begin(target(number), interpreter())
    assert len(after(1, kernel, freed)) == 3
    freed.close()
    assert kernel.attached == {}
