"""Reads the stack of a thread that is blocked in a call from outside: its Python and native frames.

A thread that sleeps changes nothing of its own. That it slept all the while is proved by what the kernel says of it
before and after: where it is, and how often it has been switched.
"""

from __future__ import annotations

import errno
import platform
from dataclasses import dataclass, replace

from ingero.capture.stacks.process_stacks import ProcessStacks
from ingero.capture.stacks.stack_frames import MergedStack, NativeFrames, PythonFrame, merge
from ingero.decode.native.machines import MACHINES
from ingero.decode.native.unwinder import ThreadCopy
from ingero.discover.memory_files import Position

_MACHINE = platform.machine()
_PAGE_BYTES = 4096
_MAX_STACK_BYTES = 256 << 10  # of a blocked thread there is time to copy all of a usual one
_NOTE = "read while the call was in flight"


class NotBlockedError(Exception):
    """The thread ran, or may have run, so that its stack as read is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightCall:
    """A thread in a traced call. sp, caller: stack pointer at entry, and return address."""

    pid: int
    tid: int
    thread_pointer: int
    sp: int
    caller: int


def in_flight_call_stack(call: InFlightCall, process: ProcessStacks) -> MergedStack:
    """The stack of a call that has not returned.

    Raises:
        NotBlockedError: the thread did not sleep all the while.
        OSError: it is gone, or does not answer.
    """
    before = _position(call, process)
    python, problem = _python(call, process)
    sp, pc = before.registers
    begin = sp & -_PAGE_BYTES
    stack = begin, process.memory.mapped(call.pid, begin, _MAX_STACK_BYTES)
    if _position(call, process) != before:
        raise NotBlockedError("it was switched out meanwhile")
    native, gap = _native(call, process, (sp, pc), stack)
    interpreter = process.interpreter.file if process.interpreter else ""
    note = "; ".join(part for part in (_NOTE, gap, problem) if part)
    return merge(native, python, interpreter, note=note, is_python_whole=not problem)


def _position(call: InFlightCall, process: ProcessStacks) -> Position:
    (found,) = process.memory.positions(call.pid, [call.tid])
    if found is None:
        raise ProcessLookupError(errno.ESRCH, "it has ended")
    if not found.is_blocked:
        raise NotBlockedError("it is running")
    return found


def _python(call: InFlightCall, process: ProcessStacks) -> tuple[list[PythonFrame] | None, str]:
    """The Python frames, or why there are none."""
    if process.interpreter is None:
        return None, ""
    (frames,) = process.memory.frames(call.pid, process.layout, process.interpreter.version, [call.thread_pointer])
    if isinstance(frames, str):
        return None, f"no Python frames: {frames}"
    return [PythonFrame(frame.file, frame.line, frame.function) for frame in frames], ""


def _native(
    call: InFlightCall, process: ProcessStacks, blocked: tuple[int, int], stack: tuple[int, bytes]
) -> tuple[NativeFrames, str]:
    """The native frames from the blocked one outwards, and what is missing.

    Of the registers only two are known there: where more are needed, the walk begins again at the call's caller, whose
    stack pointer the probe has noted.
    """
    entry_to_cfa = MACHINES[_MACHINE].entry_to_cfa
    inner = process.unwound(_thread_copy(*blocked, stack, call, is_pc_exact=True))
    if any(frame.address == call.caller for frame in inner.frames):
        return inner, ""
    outer = process.unwound(_thread_copy(call.sp + entry_to_cfa, call.caller, stack, call, is_pc_exact=False))
    if not outer.frames:
        return inner, ""
    gap = f"inside the call, native frames end after {len(inner.frames)}: {inner.ending.value}"
    return replace(outer, frames=inner.frames + outer.frames), gap


def _thread_copy(sp: int, pc: int, stack: tuple[int, bytes], call: InFlightCall, *, is_pc_exact: bool) -> ThreadCopy:
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
