"""The stack of a thread that is parked in a call, read from outside: its Python frames, and its native ones.

A thread that sleeps changes nothing of its own. That it slept all the while is proved by what the kernel says of it
before and after: where it is, and how often it has been switched.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ingero.capture.process_stacks import ProcessStacks
from ingero.capture.python_walk import BrokenWalkError, python_frames
from ingero.capture.stack_frames import MergedStack, NativeFrames, PythonFrame, merge
from ingero.decode.native.machines import MACHINES
from ingero.decode.native.unwinder import ThreadCopy
from ingero.discover.memory import ProcessMemory, UnreadableMemoryError
from ingero.discover.processes import PROC

_MACHINE = platform.machine()
_PAGE_BYTES = 4096
_MAX_STACK_BYTES = 256 << 10  # of a parked thread there is time to copy all of a usual one
_NOTE = "read while the call was in flight"


class NotParkedError(Exception):
    """The thread ran, or may have: what was read of it proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A thread in a traced call. sp, caller: the stack pointer at the call's entry, and the address it returns to."""

    pid: int
    tid: int
    thread_pointer: int
    sp: int
    caller: int


@dataclass(frozen=True, slots=True)
class _Position:
    """Where a thread is parked. line: the kernel's words; switches: how often it was switched out."""

    line: str
    switches: int

    @property
    def registers(self) -> tuple[int, int]:
        """Stack pointer and program counter."""
        sp, pc = self.line.split()[-2:]
        return int(sp, 16), int(pc, 16)


def open_call_stack(call: OpenCall, process: ProcessStacks) -> MergedStack:
    """The stack of a call that has not returned.

    Raises:
        NotParkedError: the thread did not sleep all the while.
        OSError: it is gone.
    """
    with ProcessMemory(call.pid) as memory:
        with _held_still(call) as position:
            python, problem = _python(call, process, memory)
            sp, pc = position.registers
            stack_vaddr, stack = _copy(memory, sp)
        native, gap = _native(call, process, (sp, pc), (stack_vaddr, stack))
    interpreter = process.interpreter.file if process.interpreter else ""
    note = "; ".join(part for part in (_NOTE, gap, problem) if part)
    return merge(native, python, interpreter, note=note, is_python_whole=not problem)


@contextmanager
def _held_still(call: OpenCall) -> Iterator[_Position]:
    before = _position(call)
    yield before
    if _position(call) != before:
        raise NotParkedError("it was switched out meanwhile")


def check_still_parked(pid: int, tid: int, switches: int) -> None:
    """Passes if a thread sleeps, and has been switched out so many times.

    Raises:
        NotParkedError: it ran meanwhile, or runs.
        OSError: it is gone.
    """
    if _parked_at(pid, tid).switches != switches:
        raise NotParkedError("it was switched out meanwhile")


def _position(call: OpenCall) -> _Position:
    return _parked_at(call.pid, call.tid)


def _parked_at(pid: int, tid: int) -> _Position:
    task = PROC / str(pid) / "task" / str(tid)
    switches = _switches(task)
    line = (task / "syscall").read_text().strip()
    if line == "running" or not line:
        raise NotParkedError("it is running")
    return _Position(line, switches)


def _switches(task: Path) -> int:
    return sum(int(line.split()[1]) for line in (task / "status").read_text().splitlines() if "ctxt_switches" in line)


def _python(call: OpenCall, process: ProcessStacks, memory: ProcessMemory) -> tuple[list[PythonFrame] | None, str]:
    """The Python frames, and why there are none."""
    if process.interpreter is None:
        return None, ""
    try:
        frames = python_frames(memory.read, process.layout, process.interpreter.version, call.thread_pointer)
    except (BrokenWalkError, UnreadableMemoryError) as error:
        return None, f"no Python frames: {error}"
    return [PythonFrame(frame.file, frame.line, frame.function) for frame in frames], ""


def _copy(memory: ProcessMemory, sp: int) -> tuple[int, bytes]:
    """The stack from its page upwards, as far as it is mapped."""
    begin = sp & -_PAGE_BYTES
    pages: list[bytes] = []
    for at in range(begin, begin + _MAX_STACK_BYTES, _PAGE_BYTES):
        try:
            pages.append(memory.read(at, _PAGE_BYTES))
        except UnreadableMemoryError:
            break
    return begin, b"".join(pages)


def _native(
    call: OpenCall, process: ProcessStacks, parked: tuple[int, int], stack: tuple[int, bytes]
) -> tuple[NativeFrames, str]:
    """From where it is parked outwards, and what of it is not known.

    Of the registers only two are known there: where more are needed, the walk begins again at the call's caller, whose
    stack pointer the probe has noted.
    """
    entry_to_cfa = MACHINES[_MACHINE].entry_to_cfa
    inner = process.unwound(_thread_copy(*parked, stack, call, is_pc_exact=True))
    if any(frame.address == call.caller for frame in inner.frames):
        return inner, ""
    outer = process.unwound(_thread_copy(call.sp + entry_to_cfa, call.caller, stack, call, is_pc_exact=False))
    if not outer.frames:
        return inner, ""
    gap = f"inside the call, native frames end after {len(inner.frames)}: {inner.ending.value}"
    return replace(outer, frames=inner.frames + outer.frames), gap


def _thread_copy(sp: int, pc: int, stack: tuple[int, bytes], call: OpenCall, *, is_pc_exact: bool) -> ThreadCopy:
    machine = MACHINES[_MACHINE]
    registers: list[int | None] = [None] * machine.registers
    registers[machine.sp], registers[machine.pc] = sp, pc
    return ThreadCopy(
        machine=_MACHINE,
        registers=registers,
        is_pc_exact=is_pc_exact,
        stack_vaddr=stack[0],
        stack=stack[1],
        probed={call.sp: call.caller},
    )
