"""Reads the memory of other processes: in this process, or through the sandbox.

The opener opens it, and copies bytes; a reader, which is handed it open and has no rights, follows the pointers.
Whoever withholds memory, or leads a walk in circles, costs a process that is replaced, and what was asked for.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ingero.capture.foreign.memory_files import SandboxedMemoryFiles, sign_of
from ingero.capture.foreign.memory_tasks import PythonStackWalks
from ingero.capture.stacks.python_walk import WalkedFrame
from ingero.decode.python_code import CodeObject, from_memory
from ingero.discover import freed_code
from ingero.discover.freed_code import Destructor, NoDestructorError, code_destructor
from ingero.discover.interpreters import (
    ExaminedFiles,
    Interpreter,
    InterpreterFile,
    ProcessFiles,
    UnreadableInterpreter,
    find_interpreter,
    not_answered,
)
from ingero.discover.library_reader import HeldFile
from ingero.discover.mappings import Mapping as MappedRange
from ingero.discover.memory import ProcessMemory
from ingero.discover.memory_files import MemoryFiles, Position
from ingero.discover.python_layouts import UnknownLayoutError, layout_of
from ingero.sandbox.messages import MAX_FILES, Message
from ingero.sandbox.process import NoAnswerError, RefusedAnswerError, SandboxedProcess

logger = logging.getLogger(__name__)

# A walk takes 0.5 ms, an interpreter's file 20 ms, where nothing else runs; other threads wait for none of this.
_CPU_S, _WALL_S, _OPEN_S = 1.0, 1.0, 0.5
_MAX_TRIES = 3  # of one process
_MAX_GIVEN_UP = 1 << 12
_MAX_TEXT = 1 << 16
_ADDRESSES = range(1 << 64)


class MemoryReader:
    """Reads memory of other processes in this process.

    Raises:
        OSError: from all; the process has ended, may not be read, or does not answer.
    """

    def __init__(self, files: MemoryFiles | None = None) -> None:
        self._files, self._walks = files or MemoryFiles(), PythonStackWalks()

    def interpreter(self, pid: int) -> Interpreter | UnreadableInterpreter | None:
        """The interpreter of a process; see `find_interpreter`. Never raises."""
        return find_interpreter(pid)

    def destructor(self, pid: int, interpreter: Interpreter) -> Destructor:
        """The destructor of code objects; see `code_destructor`."""
        return code_destructor(pid, interpreter)

    def may_probe(self) -> bool:
        """Whether no process is known to hold its memory lock: a probe on a file that it maps would wait for it."""
        return True

    def code(self, pid: int, address: int, key: int, layout: Mapping[str, int]) -> CodeObject | None:
        """A code object read from memory; see `python_code.from_memory`."""
        with ProcessMemory(pid) as memory:
            return from_memory(memory.read, address, key, layout)

    def frames(
        self, pid: int, layout: Mapping[str, int], version: tuple[int, int], thread_pointers: Sequence[int]
    ) -> list[list[WalkedFrame] | str]:
        """The Python frames of threads; a text: why they cannot be read."""
        with ProcessMemory(pid) as memory:
            return [self._walks.walked(memory.read, pid, layout, version, one) for one in thread_pointers]

    def positions(self, pid: int, tids: Sequence[int]) -> list[Position | None]:
        """As in MemoryFiles."""
        return self._files.positions(pid, tids)

    def mapped(self, pid: int, address: int, size: int) -> bytes:
        """As in MemoryFiles."""
        return self._files.mapped(pid, address, size)


class SandboxedMemoryReader(MemoryReader):
    """Reads memory through the sandbox. opener, reader: its processes. Thread-safe."""

    def __init__(
        self,
        files: SandboxedMemoryFiles,
        opener: SandboxedProcess,
        reader: SandboxedProcess,
        count_drop: Callable[[str], None],
    ) -> None:
        super().__init__(files)
        self._withheld, self._opener, self._reader, self._count_drop = files, opener, reader, count_drop
        self._given_up: dict[int, tuple[int, int]] = {}  # by pid: sign of this very process, how often it took too long

    def interpreter(self, pid: int) -> Interpreter | UnreadableInterpreter | None:
        """See `MemoryReader.interpreter`; one that is not known yet may be asked for again, as often as one likes."""
        if self._is_given_up(pid):
            return UnreadableInterpreter(file=f"process {pid}", reason="reading its memory takes too long")
        if self._withheld.is_paused(pid):
            return not_answered(pid)
        return find_interpreter(pid, files=_SandboxedFiles(self, pid))

    def destructor(self, pid: int, interpreter: Interpreter) -> Destructor:
        """See `MemoryReader.destructor`."""
        address = int.from_bytes(self.mapped(pid, freed_code.pointer_at(interpreter), 8), "little")
        mapping = freed_code.destructor_mapping(address, interpreter, self._files.maps(pid))
        (held,) = self.open_files(pid, [mapping])
        if not isinstance(held, HeldFile):
            raise OSError(errno.EACCES, held)
        content = {"path": mapping.path, "offset": address - mapping.start + mapping.offset}
        try:
            offset = int(self.ask(pid, "destructor", content, [held.descriptor]).content["offset"])
        except RefusedAnswerError as error:
            raise NoDestructorError(str(error)) from None
        except (LookupError, TypeError, ValueError):
            raise _malformed() from None
        return Destructor(path=f"/proc/self/fd/{held.descriptor}", offset=offset, held=held)

    def may_probe(self) -> bool:
        """See `MemoryReader.may_probe`."""
        return not self._withheld.has_withheld()

    def code(self, pid: int, address: int, key: int, layout: Mapping[str, int]) -> CodeObject | None:
        """See `MemoryReader.code`."""
        content = {"address": address, "key": key, "layout": dict(layout)}
        answer = self._asked_of_memory(pid, "code", content)
        found = answer.content.get("code")
        if found is None:
            return None
        try:
            return CodeObject(str(found[0])[:_MAX_TEXT], str(found[1])[:_MAX_TEXT], int(found[2]), answer.data)
        except (LookupError, TypeError, ValueError):
            raise _malformed() from None

    def frames(
        self, pid: int, layout: Mapping[str, int], version: tuple[int, int], thread_pointers: Sequence[int]
    ) -> list[list[WalkedFrame] | str]:
        """See `MemoryReader.frames`."""
        content = {
            "number": pid,
            "layout": dict(layout),
            "version": list(version),
            "thread_pointers": list(thread_pointers),
        }
        answer = self._asked_of_memory(pid, "frames", content).content
        try:
            found = [
                one[:_MAX_TEXT] if isinstance(one, str) else [_frame_from(frame) for frame in one]
                for one in answer["frames"]
            ]
        except (LookupError, TypeError, ValueError):
            raise _malformed() from None
        if len(found) != len(thread_pointers):
            raise _malformed()
        return found

    def _asked_of_memory(self, pid: int, task: str, content: Mapping[str, Any]) -> Message:
        memory = HeldFile(self._files.memory(pid))
        try:
            return self.ask(pid, task, content, [memory.descriptor])
        except RefusedAnswerError as error:
            raise OSError(error.errno or errno.EIO, error.reason) from None
        finally:
            memory.close()

    def ask(self, pid: int, task: str, content: Mapping[str, Any], files: Sequence[int]) -> Message:
        """Asks the reader to do a task with open files of a process. Raises RefusedAnswerError, too."""
        if self._is_given_up(pid):
            self._count_drop("python_stacks_given_up")
            raise TimeoutError(errno.ETIMEDOUT, "reading it took too long before")
        try:
            return self._reader.ask(task, dict(content), files=files, cpu_s=_CPU_S, wall_s=_WALL_S, is_patient=True)
        except NoAnswerError as error:
            self._count_drop("python_stacks_given_up")
            self._withheld.note_wait(pid, error)
            self._give_up(pid)
            logger.warning("Python frames of process %d cannot be read: %s", pid, error.reason)
            raise TimeoutError(errno.ETIMEDOUT, error.reason) from None

    def _is_given_up(self, pid: int) -> bool:
        sign, times = self._given_up.get(pid, (0, 0))
        return times >= _MAX_TRIES and sign == sign_of(pid)

    def _give_up(self, pid: int) -> None:
        now = sign_of(pid)
        sign, times = self._given_up.get(pid, (0, 0))
        if len(self._given_up) >= _MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[pid] = now, times + 1 if sign == now else 1

    def open_files(self, pid: int, mappings: Sequence[MappedRange]) -> list[HeldFile | str]:
        """The files behind mappings, or why they cannot be opened."""
        content = {
            "process": f"/proc/{pid}",
            "mappings": [[one.range_name, one.path, one.inode] for one in mappings[:MAX_FILES]],
        }
        try:
            answer = self._opener.ask("open_mapped", content, cpu_s=_CPU_S, wall_s=_OPEN_S, is_patient=True)
        except NoAnswerError as error:
            self._count_drop("native_files_given_up")
            self._withheld.note_wait(pid, error)
            raise TimeoutError(errno.ETIMEDOUT, error.reason) from None
        except RefusedAnswerError as error:
            raise OSError(error.errno or errno.EIO, error.reason) from None
        files = [HeldFile(one) for one in answer.files]
        problems = answer.content.get("problems")
        if not isinstance(problems, list) or len(problems) != len(mappings) or problems.count("") != len(files):
            raise _malformed()
        left = iter(files)
        return [str(problem)[:_MAX_TEXT] if problem else next(left) for problem in problems]


class _SandboxedFiles(ProcessFiles):
    """The files that `find_interpreter` needs of one process, read through the sandbox."""

    def __init__(self, reads: SandboxedMemoryReader, pid: int) -> None:
        super().__init__(pid)
        self._reads = reads

    def maps(self) -> bytes:
        """See `ProcessFiles.maps`."""
        return self._reads._files.maps(self._pid)

    def program(self) -> str:
        """See `ProcessFiles.program`."""
        return self._reads._files.program(self._pid)

    def examine(
        self, candidates: Sequence[InterpreterFile], libc: Sequence[InterpreterFile], mappings: Sequence[MappedRange]
    ) -> ExaminedFiles:
        """See `ProcessFiles.examine`."""
        if not candidates:
            return ExaminedFiles()
        candidates, most = candidates[: MAX_FILES // 2], MAX_FILES // 2 - 1
        mappings = [*mappings[: len(candidates)], *mappings[len(mappings) - len(libc) :][:most]]
        libc = libc[:most]
        memory = HeldFile(self._reads._files.memory(self._pid))
        held = self._reads.open_files(self._pid, mappings)
        files = [one.descriptor for one in held if isinstance(one, HeldFile)]
        numbers = iter(range(1, len(files) + 1))
        content = {
            "candidates": [[one.path, one.start, one.offset] for one in candidates],
            "libc": [[one.path, one.start, one.offset] for one in libc],
            "files": [next(numbers) if isinstance(one, HeldFile) else None for one in held],
            "refused": [place for place, one in enumerate(held) if one in _REFUSED],
        }
        try:
            answer = self._reads.ask(self._pid, "interpreter", content, [memory.descriptor, *files])
        except RefusedAnswerError as error:
            raise OSError(error.errno or errno.EIO, error.reason) from None
        try:
            return _examined_from(answer, candidates)
        except (LookupError, TypeError, ValueError, UnknownLayoutError):
            raise _malformed() from None


_REFUSED = tuple(os.strerror(number) for number in (errno.EACCES, errno.EPERM))


def _examined_from(answer: Message, candidates: Sequence[InterpreterFile]) -> ExaminedFiles:
    content = answer.content
    problems = {int(place): str(reason)[:_MAX_TEXT] for place, reason in content["problems"]}
    if not all(0 <= place < len(candidates) for place in problems):
        raise ValueError
    if "unreadable" in content:
        file, reason, is_starting = content["unreadable"]
        found = UnreadableInterpreter(
            file=str(file)[:_MAX_TEXT], reason=str(reason)[:_MAX_TEXT], is_starting=bool(is_starting)
        )
        return ExaminedFiles(interpreter=found, problems=problems)
    if "place" not in content:
        return ExaminedFiles(problems=problems)
    runtime, code_type, none = map(int, content["addresses"])
    version = int(content["version"][0]), int(content["version"][1])
    bias, runtime_bytes = int(content["thread_bias"]), int(content["runtime_bytes"])
    if not all(one in _ADDRESSES for one in (runtime, code_type, none, runtime + runtime_bytes, runtime_bytes)):
        raise ValueError
    if not -(1 << 31) <= bias <= 0:
        raise ValueError
    candidate = candidates[int(content["place"])]
    return ExaminedFiles(
        interpreter=Interpreter(
            file=candidate.file,
            layout=layout_of(version, answer.data),
            runtime=runtime,
            code_type=code_type,
            none=none,
            thread_bias=bias,
            text=candidate.text,
            runtime_bytes=runtime_bytes,
            debug_offsets=answer.data,
        ),
        place=int(content["place"]),
        problems=problems,
    )


def _frame_from(content: Any) -> WalkedFrame:
    file, line, function = content
    return WalkedFrame(str(file)[:_MAX_TEXT], int(line), str(function)[:_MAX_TEXT])


def _malformed() -> OSError:
    return OSError(errno.EBADMSG, "the reply is malformed")
