"""Tasks of a sandboxed reader on a process's memory, handed to it open: Python stacks, code objects, interpreters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingero.capture.stacks.python_walk import BrokenWalkError, KnownCode, WalkedFrame, python_frames
from ingero.decode.python_code import Read, from_memory
from ingero.discover.elf import ElfFile
from ingero.discover.freed_code import offset_of_probe
from ingero.discover.interpreters import InterpreterFile, UnreadableInterpreter, examine
from ingero.discover.memory import ProcessMemory, UnreadableMemoryError
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import Task

MAX_TEXT = 4096  # characters of a file's or function's name
_MAX_PROCESSES = 256
_MAX_CODE = 1 << 13  # code objects of a process
_MAX_TABLE_BYTES = 16 << 20  # of all
_NOBODY = 0  # in place of a process: its memory is open


def tasks() -> Mapping[str, Task]:
    """The tasks by name."""
    return {"frames": PythonStackWalks().frames, "code": _code, "interpreter": _interpreter, "destructor": _destructor}


class PythonStackWalks:
    """Walks Python stacks, and keeps code objects by process as long as they take little."""

    def __init__(self) -> None:
        self._known: dict[int, KnownCode] = {}
        self._table_bytes: dict[int, int] = {}

    def walked(
        self, read: Read, number: int, layout: Mapping[str, int], version: tuple[int, int], thread_pointer: int
    ) -> list[WalkedFrame] | str:
        """The Python frames of a thread; a text: why they cannot be read. number: of the process."""
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
        is_much = sum(self._table_bytes.values()) > _MAX_TABLE_BYTES or len(self._known) > _MAX_PROCESSES
        if is_much or len(self._known[number]) > _MAX_CODE:
            self._known.clear()
            self._table_bytes.clear()

    def frames(self, question: Message) -> Message:
        """The Python frames of some threads of one process."""
        content = question.content
        layout, version = content["layout"], (int(content["version"][0]), int(content["version"][1]))
        with ProcessMemory(_NOBODY, descriptor=question.files[0]) as memory:
            found = [
                self.walked(memory.read, content["number"], layout, version, one) for one in content["thread_pointers"]
            ]
        return Message(
            {"frames": [one if isinstance(one, str) else [_frame_content(frame) for frame in one] for one in found]}
        )


def _frame_content(frame: WalkedFrame) -> list[Any]:
    return [frame.file[:MAX_TEXT], frame.line, frame.function[:MAX_TEXT]]


def _code(question: Message) -> Message:
    """A code object; null if it is no longer there."""
    content = question.content
    with ProcessMemory(_NOBODY, descriptor=question.files[0]) as memory:
        found = from_memory(memory.read, content["address"], content["key"], content["layout"])
    if found is None:
        return Message({"code": None})
    return Message({"code": [found.file[:MAX_TEXT], found.name[:MAX_TEXT], found.first_line]}, found.table)


def _interpreter(question: Message) -> Message:
    """The interpreter among candidates (their files follow the process's memory), and what its layout is made of."""
    content = question.content
    candidates, libc = (
        [InterpreterFile(path=path, start=start, offset=offset) for path, start, offset in content[name]]
        for name in ("candidates", "libc")
    )
    places: list[int | None] = content["files"]

    def open_candidate(place: int) -> ElfFile:
        number = places[place]
        if number is None:
            raise PermissionError if place in content["refused"] else FileNotFoundError
        path = (candidates + libc)[place].path
        return ElfFile(Path(path), question.files[number])

    found = examine(candidates, libc, open_candidate, lambda: ProcessMemory(_NOBODY, descriptor=question.files[0]))
    answer: dict[str, Any] = {"problems": [[place, reason[:MAX_TEXT]] for place, reason in found.problems.items()]}
    interpreter = found.interpreter
    if interpreter is None:
        return Message(answer)
    if isinstance(interpreter, UnreadableInterpreter):
        return Message(
            {
                **answer,
                "unreadable": [interpreter.file[:MAX_TEXT], interpreter.reason[:MAX_TEXT], interpreter.is_starting],
            }
        )
    addresses = [interpreter.runtime, interpreter.code_type, interpreter.none]
    return Message(
        {
            **answer,
            "place": found.place,
            "version": interpreter.version,
            "addresses": addresses,
            "thread_bias": interpreter.thread_bias,
            "runtime_bytes": interpreter.runtime_bytes,
        },
        interpreter.debug_offsets,
    )


def _destructor(question: Message) -> Message:
    """Where the probe goes on a function of a file."""
    with ElfFile(Path(question.content["path"]), question.files[0]) as elf:
        return Message({"offset": offset_of_probe(elf, question.content["offset"])})
