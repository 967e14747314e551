"""What a reader of the sandbox makes of a process's memory, which it was handed open: stacks, code, interpreters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingero.capture.stacks.python_walk import BrokenWalkError, KnownCode, WalkedFrame, python_frames
from ingero.decode.python_code import Read, from_memory
from ingero.discover.elf import ElfFile
from ingero.discover.freed_code import offset_of_probe
from ingero.discover.interpreters import Candidate, UnreadableInterpreter, examined
from ingero.discover.memory import ProcessMemory, UnreadableMemoryError
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import Task

MOST_TEXT = 4096  # characters of a file's or function's name
_MOST_PROCESSES = 256
_MOST_CODE = 1 << 13  # code objects of a process
_MOST_TABLE_BYTES = 16 << 20  # of all
_NOBODY = 0  # in place of a process: its memory is open


def tasks() -> Mapping[str, Task]:
    """By the names that they are asked for by."""
    return {"frames": Walks().frames, "code": _code, "interpreter": _interpreter, "destructor": _destructor}


class Walks:
    """Walks Python stacks, and keeps code objects by process as long as they take little."""

    def __init__(self) -> None:
        self._known: dict[int, KnownCode] = {}
        self._table_bytes: dict[int, int] = {}

    def walked(
        self, read: Read, number: int, layout: Mapping[str, int], version: tuple[int, int], thread_pointer: int
    ) -> list[WalkedFrame] | str:
        """The frames of a thread; a text: why they cannot be read. number: of the process."""
        known = self._known.setdefault(number, {})
        before = len(known)
        try:
            return python_frames(read, layout, version, thread_pointer, known)
        except (BrokenWalkError, UnreadableMemoryError) as error:
            return str(error)
        finally:
            if len(known) > before:
                self._table_bytes[number] = sum(len(code.table) for code in known.values())
                self._forget_if_many(number)

    def _forget_if_many(self, number: int) -> None:
        is_much = sum(self._table_bytes.values()) > _MOST_TABLE_BYTES or len(self._known) > _MOST_PROCESSES
        if is_much or len(self._known[number]) > _MOST_CODE:
            self._known.clear()
            self._table_bytes.clear()

    def frames(self, question: Message) -> Message:
        """Of some threads of one process."""
        told = question.content
        layout, version = told["layout"], (int(told["version"][0]), int(told["version"][1]))
        with ProcessMemory(_NOBODY, descriptor=question.files[0]) as memory:
            found = [self.walked(memory.read, told["number"], layout, version, one) for one in told["thread_pointers"]]
        return Message(
            {"frames": [one if isinstance(one, str) else [_told_of(frame) for frame in one] for one in found]}
        )


def _told_of(frame: WalkedFrame) -> list[Any]:
    return [frame.file[:MOST_TEXT], frame.line, frame.function[:MOST_TEXT]]


def _code(question: Message) -> Message:
    """A code object; null where it is not there any more."""
    told = question.content
    with ProcessMemory(_NOBODY, descriptor=question.files[0]) as memory:
        found = from_memory(memory.read, told["address"], told["key"], told["layout"])
    if found is None:
        return Message({"code": None})
    return Message({"code": [found.file[:MOST_TEXT], found.name[:MOST_TEXT], found.first_line]}, found.table)


def _interpreter(question: Message) -> Message:
    """Of candidates, whose files follow the process's memory, the interpreter and what its layout is made of."""
    told = question.content
    candidates, libc = (
        [Candidate(path=path, start=start, offset=offset) for path, start, offset in told[name]]
        for name in ("candidates", "libc")
    )
    places: list[int | None] = told["files"]

    def opened(place: int) -> ElfFile:
        number = places[place]
        if number is None:
            raise PermissionError if place in told["refused"] else FileNotFoundError
        path = (candidates + libc)[place].path
        return ElfFile(Path(path), question.files[number])

    found = examined(candidates, libc, opened, lambda: ProcessMemory(_NOBODY, descriptor=question.files[0]))
    answer: dict[str, Any] = {"problems": [[place, reason[:MOST_TEXT]] for place, reason in found.problems.items()]}
    one = found.interpreter
    if one is None:
        return Message(answer)
    if isinstance(one, UnreadableInterpreter):
        return Message({**answer, "unreadable": [one.file[:MOST_TEXT], one.reason[:MOST_TEXT], one.is_starting]})
    addresses = [one.runtime, one.code_type, one.none]
    return Message(
        {
            **answer,
            "place": found.place,
            "version": one.version,
            "addresses": addresses,
            "thread_bias": one.thread_bias,
            "runtime_bytes": one.runtime_bytes,
        },
        one.debug_offsets,
    )


def _destructor(question: Message) -> Message:
    """Where the probe goes on a function of a file."""
    with ElfFile(Path(question.content["path"]), question.files[0]) as elf:
        return Message({"offset": offset_of_probe(elf, question.content["offset"])})
