"""The text of what a process held: the most first, at its line, and what is not known is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.ops import BY_NAME, MemoryKind
from ingero.serve.text.memory_lines import memory_lines
from ingero.store.call_stacks import StackBook
from ingero.store.reader import Reader, open_reader
from ingero.store.records import SessionFacts, Window
from ingero.store.writing import tables
from ingero.store.writing.writer import Writer

BEGIN_NS = 1_790_000_000_000_000_000
SECOND_NS = 1_000_000_000
MIB = 1 << 20
MALLOC = BY_NAME["cudaMalloc"]
TRAIN, CACHE = 11, 12


class Memory:
    """Writes what one process holds."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._process = writer, writer.process_id(10, 1)
        row = tables.PROCESSES.rows(1, process=self._process, session=writer.session, pid=10, start_ns=1)
        writer.append(tables.PROCESSES, row)

    def store(self) -> None:
        """Waits until it can be read."""
        self._writer.flush()

    def stack(self, number: int, file: str, line: int) -> None:
        """The stack with this hash: one line of the user's own."""
        frames = json.dumps([{"py_file": f"/srv/{file}", "py_line": line, "py_func": "step"}])
        self._writer.append(tables.STACKS, tables.STACKS.rows(1, hash=number, ips="[]", frames=frames))

    def site(self, second: int, caller: int, stack_hash: int, live_bytes: int, **growth: int) -> None:
        """A row of a call site."""
        columns: dict[str, tables.Column] = {"live_count": 1, "peak_bytes": live_bytes, **growth}
        row = tables.ALLOCATIONS.rows(
            1, session=self._writer.session, start_ns=BEGIN_NS + second * SECOND_NS, process=self._process,
            source=int(MALLOC.source), op=MALLOC.code, caller=caller, memory_kind=int(MemoryKind.DEVICE),
            stack_hash=stack_hash, live_bytes=live_bytes, library=self._writer.intern("libtorch.so"), offset=0x40,
            **columns,
        )  # fmt: skip
        self._writer.append(tables.ALLOCATIONS, row)

    def total(self, second: int, live_bytes: int, peak_bytes: int, *, unpaired: int = 0) -> None:
        """A row of the process."""
        row = tables.MEMORY_SECONDS.rows(
            1, session=self._writer.session, start_ns=BEGIN_NS + second * SECOND_NS, process=self._process,
            memory_kind=int(MemoryKind.DEVICE), live_bytes=live_bytes, live_count=1, peak_bytes=peak_bytes,
            unpaired=unpaired,
        )  # fmt: skip
        self._writer.append(tables.MEMORY_SECONDS, row)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def memory(database: Path) -> Iterator[Memory]:
    with Writer(database, session=SessionFacts(uuid="u", started_ns=BEGIN_NS), node="node") as writer:
        yield Memory(writer)


def text(database: Path, *, begin_s: int = 0, end_s: int = 60) -> list[str]:
    window = Window(begin_ns=BEGIN_NS + begin_s * SECOND_NS, end_ns=BEGIN_NS + end_s * SECOND_NS)
    with open_reader(database) as reader:
        return list(memory_lines(reader, window, _only_process(reader), StackBook(reader)))


def _only_process(reader: Reader) -> int:
    (process,) = reader.processes()
    return process.process


def test_the_line_that_holds_most_comes_first(database: Path, memory: Memory) -> None:
    memory.stack(TRAIN, "train.py", 31)
    memory.stack(CACHE, "cache.py", 7)
    memory.site(1, 0x1000, TRAIN, 2 * MIB, allocated_bytes=2 * MIB, allocations=1)
    memory.site(2, 0x1000, CACHE, 5 * MIB, allocated_bytes=5 * MIB, allocations=1)
    memory.total(2, 7 * MIB, 9 * MIB)
    memory.store()
    assert text(database) == [
        "  device memory: 7.00 MiB in use at the end (peak 9.00 MiB), by line or call site:",
        "      5.00 MiB in 1 by cudaMalloc at cache.py:7 in step",
        "      2.00 MiB in 1 by cudaMalloc at train.py:31 in step",
    ]


def test_growth_is_said_where_something_was_held_before(database: Path, memory: Memory) -> None:
    memory.stack(TRAIN, "train.py", 31)
    memory.site(1, 0x1000, TRAIN, 2 * MIB, allocated_bytes=2 * MIB, allocations=1)
    memory.site(30, 0x1000, TRAIN, 5 * MIB, allocated_bytes=3 * MIB, allocations=1)
    memory.total(30, 5 * MIB, 5 * MIB)
    memory.store()
    assert text(database, begin_s=10)[1].endswith("at train.py:31 in step, +3.00 MiB in this window")


def test_calls_without_a_record_are_at_the_line_of_their_site_if_it_has_one_line(
    database: Path, memory: Memory
) -> None:
    memory.stack(TRAIN, "train.py", 31)
    memory.site(1, 0x1000, TRAIN, MIB)
    memory.site(1, 0x1000, 0, 3 * MIB)
    memory.total(1, 4 * MIB, 4 * MIB)
    memory.store()
    assert text(database)[1] == "      4.00 MiB in 2 by cudaMalloc at train.py:31 in step"


def test_calls_without_a_record_of_a_site_with_several_lines_are_at_none(database: Path, memory: Memory) -> None:
    memory.stack(TRAIN, "train.py", 31)
    memory.stack(CACHE, "cache.py", 7)
    for stack_hash in (TRAIN, CACHE, 0):
        memory.site(1, 0x1000, stack_hash, 3 * MIB)
    memory.total(1, 9 * MIB, 9 * MIB)
    memory.store()
    assert "      3.00 MiB in 1 by cudaMalloc at libtorch.so+0x40, calls without a stack" in text(database)


def test_failures_and_frees_of_foreign_memory_are_counted(database: Path, memory: Memory) -> None:
    memory.stack(TRAIN, "train.py", 31)
    memory.site(1, 0x1000, TRAIN, 0, failures=3, failed_bytes=6 * MIB, foreign_frees=2)
    memory.total(1, 0, MIB)
    memory.store()
    assert text(database)[1:] == [
        "  3 times cudaMalloc failed at train.py:31 in step: 6.00 MiB asked for in all",
        "    2 frees were of memory that was allocated before tracing or unseen",
    ]


def test_levels_that_are_not_exact_say_so(database: Path, memory: Memory) -> None:
    memory.total(1, MIB, MIB, unpaired=3)
    memory.store()
    assert text(database)[-1].startswith("    not exact: ")


def test_a_process_whose_allocations_were_not_followed_is_not_said_to_hold_nothing(
    database: Path, memory: Memory
) -> None:
    memory.total(1, 0, 0, unpaired=1)
    memory.store()
    assert text(database) == ["  GPU memory: not traced, allocations were not followed from their return to their free"]
