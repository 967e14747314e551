"""The stacks of one process: its code objects, its Python stacks, its native stacks, and how they are resolved."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np

from ingero.capture.foreign.memory_reader import MemoryReader
from ingero.capture.foreign.native_reader import NativeReader
from ingero.capture.stacks.address_space import ProcessAddressSpace
from ingero.capture.stacks.deciding_words import DecidingWords
from ingero.capture.stacks.stack_frames import NativeFrame, NativeFrames, PythonFrame
from ingero.decode.native.machines import MACHINES
from ingero.decode.native.symbols import SymbolTable
from ingero.decode.native.unwinder import Ending, Frame, NativeStack, ThreadCopy
from ingero.decode.python_code import CodeObject, from_record
from ingero.discover.interpreters import Interpreter
from ingero.elf import ElfImage

_MACHINE = platform.machine()
_PYTHON_ENDINGS = {  # enum python_flag
    1: "Python frames end early: the limit of recorded frames was reached",
    2: "Python frames end early: the interpreter's memory could not be read",
    4: "Python frames end early: found something else where a code object was expected",
}
_MAX_PYTHON = 1 << 14  # stacks, 0.6 KB each; they are stored seconds after they came, and then no longer needed
_MAX_NATIVE = 1 << 12  # 3 KB each, most of them under two keys
_MAX_CODE, _MAX_TABLE_BYTES = 1 << 16, 16 << 20  # code objects; PyTorch's own have tables of 8 MB
_MAX_LINES = 1 << 14
_UNKNOWN_CODE = CodeObject("?", "?", 0, b"")
_IN_INTERPRETER = 1  # NATIVE_IN_INTERPRETER
_NO_FRAMES = NativeFrames((), Ending.COMPLETE, "")


class Symbols:
    """Symbol tables by file, read on the first question and shared by all processes."""

    def __init__(self, reader: NativeReader | None = None) -> None:
        self.reader = reader or NativeReader()
        self._tables: dict[int, tuple[ElfImage, SymbolTable]] = {}

    def of(self, image: ElfImage) -> SymbolTable:
        """The table of one file."""
        if id(image) not in self._tables:
            self._tables[id(image)] = (image, self.reader.table(image))
        return self._tables[id(image)][1]

    def keep(self, images: Collection[int]) -> None:
        """Forgets the tables of all files but these, by the `id` of their image."""
        self._tables = {number: entry for number, entry in self._tables.items() if number in images}


class ProcessStacks:
    """The stacks of one process, by hash.

    interpreter, layout: None where it has no readable one; layout is its `struct python_layout`, field by field.
    deciding: gets the answers to copies of stacks. count_drop: called with a counter's name for what could not be
    resolved.
    """

    def __init__(
        self,
        pid: int,
        space: ProcessAddressSpace,
        symbols: Symbols,
        deciding: DecidingWords,
        count_drop: Callable[[str], None],
    ) -> None:
        self.pid, self._space, self._symbols, self._deciding, self._count_drop = (
            pid,
            space,
            symbols,
            deciding,
            count_drop,
        )
        self.interpreter: Interpreter | None = None
        self.layout: dict[str, int] = {}
        self._code: dict[tuple[int, int], CodeObject] = {}
        self._table_bytes = 0
        self._lines: dict[tuple[int, int], tuple[CodeObject, int]] = {}  # by code object and instruction
        self._python: dict[int, np.ndarray[Any, Any]] = {}
        self._python_endings: dict[int, str] = {}
        self._native: dict[int, NativeStack] = {}
        self._unasked: set[int] = set()  # of its keys: those of which the kernel side sends no copy

    @property
    def memory(self) -> MemoryReader:
        """The reader of the process's memory."""
        return self._symbols.reader.memory

    def add_code(self, record: Any) -> None:
        """Takes a code object (`struct python_code_record`); what the record lacks is read from the process."""
        key, address = int(record["key"]), int(record["code"])
        code = from_record(record, self.layout.get("string_state_shift", 2)) or self._from_memory(address, key)
        if code:
            self._keep_code((key, address), code)

    def add_python(self, record: Any) -> None:
        """Takes a Python stack (`struct python_stack_record`)."""
        if len(self._python) >= _MAX_PYTHON:
            oldest = next(iter(self._python))
            del self._python[oldest]
            self._python_endings.pop(oldest, None)
        self._python[int(record["hash"])] = record["frame"][: int(record["count"])].copy()
        if record["flags"]:
            self._python_endings[int(record["hash"])] = _PYTHON_ENDINGS[int(record["flags"])]

    def add_native(self, record: Any) -> None:
        """Takes a stack copy (`struct native_stack_record`) and unwinds it at once, while its files are mapped.

        Names are resolved on demand: they take longest, and until the answer calls cannot be distinguished.
        """
        machine = MACHINES[_MACHINE]
        copy = ThreadCopy(
            machine=_MACHINE,
            registers=record["registers"][: machine.registers].tolist(),
            is_pc_exact=bool(record["is_pc_exact"]),
            stack_vaddr=int(record["stack_vaddr"]),
            stack=record["stack"][: int(record["stack_bytes"])].tobytes(),
            probed=dict(zip(record["probed_sp"].tolist(), record["probed_caller"].tolist(), strict=True)),
        )
        stack, key = self._symbols.reader.unwind(copy, self._space), int(record["key"])
        kept = replace(stack, words=())
        self._keep(key, kept)
        shown = self._shown(stack) if record["has_python"] else len(stack.words)
        last = self._deciding.answer(self.pid, key, copy, stack.words[:shown])
        if last and last not in self._native:
            self._keep(last, kept)
            self._unasked.add(last)

    def _keep(self, key: int, stack: NativeStack) -> None:
        if len(self._native) >= _MAX_NATIVE:
            oldest = next(iter(self._native))
            del self._native[oldest]
            if oldest in self._unasked:
                self._unasked.remove(oldest)
                self._deciding.forget(self.pid, oldest)
        self._native[key] = stack

    def unwound(self, copy: ThreadCopy) -> NativeFrames:
        """The native frames of a copied thread, with their names."""
        return self._with_names(self._symbols.reader.unwind(copy, self._space))

    def _shown(self, stack: NativeStack) -> int:
        """How many words determine the frames up to the interpreter; Python frames cover the rest."""
        file = self.interpreter.file if self.interpreter else ""
        ends = (frame.decided_by for frame in stack.frames if frame.module and frame.module.name == file)
        return next(ends, len(stack.words))

    def _with_names(self, stack: NativeStack) -> NativeFrames:
        return NativeFrames(tuple(self._named(frame) for frame in stack.frames), stack.ending, stack.detail)

    def python(self, stack_hash: int) -> list[PythonFrame] | None:
        """The frames of a Python stack; None if it is not known (yet)."""
        found = self._python.get(stack_hash)
        if found is None or self.interpreter is None:
            return None
        return [self._python_frame(frame, self.interpreter.version) for frame in found]

    def python_ending(self, stack_hash: int) -> str:
        """Why the frames of a Python stack end early; "" if they do not."""
        return self._python_endings.get(stack_hash, "")

    def native(self, key: int) -> NativeFrames | None:
        """The frames of a native stack; None if it is not known (yet)."""
        if key == _IN_INTERPRETER:
            return _NO_FRAMES
        self._unasked.discard(key)
        found = self._native.get(key)
        return self._with_names(found) if found else None

    def _python_frame(self, frame: Any, version: tuple[int, int]) -> PythonFrame:
        place = int(frame["key"]), int(frame["code"])
        code = self._code.get(place)
        if code is None:
            code = self._from_memory(place[1], place[0]) or _UNKNOWN_CODE
            self._keep_code(place, code)
        return PythonFrame(code.file, self._line(code, version, int(frame["instruction"])), code.name)

    def _keep_code(self, place: tuple[int, int], code: CodeObject) -> None:
        before = self._code.pop(place, None)
        self._table_bytes += len(code.table) - (len(before.table) if before else 0)
        self._code[place] = code
        while self._table_bytes > _MAX_TABLE_BYTES or len(self._code) > _MAX_CODE:
            oldest = next(iter(self._code))
            self._table_bytes -= len(self._code.pop(oldest).table)

    def _line(self, code: CodeObject, version: tuple[int, int], instruction: int) -> int:
        """The line of an instruction, cached: a line table has to be read from its beginning."""
        place = id(code), instruction
        known = self._lines.get(place)
        if known is None or known[0] is not code:
            line = code.line(version, instruction) if code is not _UNKNOWN_CODE else None
            if len(self._lines) >= _MAX_LINES:
                self._lines.clear()
            known = self._lines[place] = (code, line or 0)
        return known[1]

    def _from_memory(self, address: int, key: int) -> CodeObject | None:
        try:
            code = self.memory.code(self.pid, address, key, self.layout)
        except OSError:
            code = None
        if code is None:
            self._count_drop("python_code_unreadable")
        return code

    def _named(self, frame: Frame) -> NativeFrame:
        module = frame.module
        if module is None:
            return NativeFrame(frame.address, "[anonymous]", "", frame.address)
        symbol = self._symbols.of(module.image).at(frame.lookup) if module.image else None
        name = self._symbols.reader.demangle(symbol.name) if symbol else ""
        return NativeFrame(frame.address, module.name, name, frame.address - module.bias)
