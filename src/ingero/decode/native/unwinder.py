"""Walks from a thread's registers and a copy of its stack to its outermost function.

No frame is guessed: every return address must follow a call instruction, and the stack must grow; where one does not,
the walk ends and says why. What was found before is right all the same.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ingero.decode.native.call_frames import Place, Row, Rule
from ingero.decode.native.cursor import DamagedError
from ingero.decode.native.deciding import Deciding, Word
from ingero.decode.native.expressions import evaluate
from ingero.decode.native.frame_table import FrameTable
from ingero.decode.native.machines import MACHINES, Machine
from ingero.elf import ElfImage, UnreadableImageError

MAX_FRAMES = 512
_WORD = struct.Struct("<Q")
_MASK = (1 << 64) - 1


class Ending(Enum):
    """Why a walk ended; the values are stored and shown."""

    COMPLETE = "complete"
    TRUNCATED = "the copy of the stack ends here"
    NO_FILE = "code that belongs to no file (compiled at run time)"
    NO_TABLE = "the file says nothing about unwinding"
    DAMAGED = "what the file says about unwinding cannot be"
    NO_REGISTER = "the frame is counted from a register that is not known"
    NOT_A_CALL = "the return address follows no call"
    FOREIGN_PROBE = "another tool's return probe hides the caller"
    TOO_DEEP = "the stack has too many frames"


class Module:
    """One file mapped into a process: its image and its unwinding table, both optional.

    name: as shown. bias: an address in the process minus the address in the file. is_trampoline: the page through which
    the kernel returns from probed calls.
    """

    __slots__ = ("_table", "bias", "image", "is_trampoline", "name", "problem")

    def __init__(self, name: str, bias: int, image: ElfImage | None, *, is_trampoline: bool = False) -> None:
        self.name, self.bias, self.image, self.is_trampoline = name, bias, image, is_trampoline
        self.problem = ""
        self._table: FrameTable | None = None

    def table(self) -> FrameTable | None:
        """Its unwinding table; None where there is none, for the reason in `problem`."""
        if self._table is None and self.image and not self.problem:
            try:
                self._table = FrameTable(self.image)
            except (DamagedError, UnreadableImageError) as error:
                self.problem = str(error)
        return self._table


class AddressSpace(Protocol):
    """What is mapped where in a process."""

    def module_at(self, address: int) -> Module | None:
        """The file whose code lies at an address; None if none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadCopy:
    """A thread as it was when it was copied.

    machine: a key of MACHINES. registers: by DWARF number, the program counter at its place; None: not known.
    is_pc_exact: it was interrupted at its pc; False: pc is a return address (the copy was made as a call returned).
    stack: the bytes from address `stack_vaddr` upwards, as many as were copied.
    probed: callers of open probed calls, hidden by the kernel's trampoline: stack pointer at entry -> return address.
    """

    machine: str
    registers: Sequence[int | None]
    is_pc_exact: bool
    stack_vaddr: int
    stack: bytes
    probed: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Frame:
    """One function that had not returned.

    address: in the process; of all but an interrupted frame the return address. lookup: the address in the file at
    which to look for its name: inside the call instruction, which may be the last of its function. decided_by: so many
    of the stack's first words decide that this is the frame, and the ones before it.
    """

    address: int
    module: Module | None
    lookup: int
    decided_by: int


@dataclass(frozen=True, slots=True)
class NativeStack:
    """Innermost function first. detail: what the ending does not say. words: see `Frame.decided_by`; None: one more
    thing, which is no such word, decides the frames from here on.
    """

    frames: tuple[Frame, ...]
    ending: Ending
    detail: str
    words: tuple[Word | None, ...]


class _Ended(Exception):  # noqa: N818 (it is no error: every walk ends)
    def __init__(self, ending: Ending, detail: str = "") -> None:
        self.ending, self.detail = ending, detail


def unwind(thread: ThreadCopy, space: AddressSpace) -> NativeStack:
    """The chain of calls a thread was in."""
    walk = _Walk(thread, space)
    ending, detail = Ending.TOO_DEEP, ""
    try:
        while len(walk.frames) < MAX_FRAMES:
            walk.step()
    except _Ended as end:
        ending, detail = end.ending, end.detail
    return NativeStack(tuple(walk.frames), ending, detail, tuple(walk.deciding.words))


class _Walk:
    def __init__(self, thread: ThreadCopy, space: AddressSpace) -> None:
        self._thread, self._space = thread, space
        self._machine: Machine = MACHINES[thread.machine]
        self._registers: list[int | None] = list(thread.registers)
        self._is_exact = thread.is_pc_exact
        self.frames: list[Frame] = []
        self.deciding = Deciding(self._machine)

    def step(self) -> None:
        """Adds the current frame and goes to its caller."""
        pc = self._registers[self._machine.pc]
        if not pc:
            raise _Ended(Ending.COMPLETE)
        module = self._space.module_at(pc)
        if module is None:
            raise _Ended(Ending.NO_FILE, f"{pc:#x}")
        row = self._row(module, pc - module.bias)
        lookup = pc - module.bias - (0 if self._is_exact else 1)
        self.frames.append(Frame(pc, module, lookup, decided_by=len(self.deciding.words)))
        if row is None:
            raise _Ended(Ending.NO_TABLE, module.problem or module.name)
        self._to_caller(row)

    def _row(self, module: Module, pc: int) -> Row | None:
        table = module.table()
        if table is None:
            self._check_call(module, pc, None)
            return None
        try:
            row = table.row(pc if self._is_exact else pc - 1)
        except DamagedError as error:
            raise _Ended(Ending.DAMAGED, f"{module.name}: {error}") from None
        self._check_call(module, pc, row)
        if row and row.is_signal and not self._is_exact:
            self._is_exact = True  # the kernel pushed this address; no call did
        return row

    def _check_call(self, module: Module, pc: int, row: Row | None) -> None:
        """A return address that follows no call is none: something on the way here was wrong."""
        if self._is_exact or (row and row.is_signal) or not self.frames or module.image is None:
            return
        size = self._machine.call_bytes
        if not self._machine.is_call(module.image.read(pc - size, size)):
            raise _Ended(Ending.NOT_A_CALL, f"{module.name}+{pc:#x}")

    def _to_caller(self, row: Row) -> None:
        self.deciding.base(row)
        try:
            cfa = self._cfa(row)
            self.deciding.caller(row, cfa)
            if not self._grows(cfa, row):
                raise _Ended(Ending.DAMAGED, f"the frame at {cfa:#x} lies below its callee")
            caller = list(self._registers)
            for register, place in row.places:
                if register < len(caller) and register != row.return_register:
                    caller[register] = self._saved(place, cfa)
            return_address = self._return_address(row, cfa)
        except DamagedError as error:
            raise _Ended(Ending.DAMAGED, str(error)) from None
        caller[self._machine.sp] = cfa
        caller[self._machine.pc] = return_address
        self._registers = caller
        self._is_exact = row.is_signal

    def _grows(self, cfa: int, row: Row) -> bool:
        sp = self._registers[self._machine.sp]
        if row.is_signal or sp is None:  # a signal may run on a stack of its own
            return True
        return cfa > sp or (cfa == sp and not self._machine.entry_to_cfa)

    def _cfa(self, row: Row) -> int:
        if row.cfa_expression:
            return evaluate(row.cfa_expression, self._registers, self._read)
        if not 0 <= row.cfa_register < len(self._registers):
            raise DamagedError(f"the frame is counted from register {row.cfa_register}")
        base = self._registers[row.cfa_register]
        if base is None:
            raise _Ended(Ending.NO_REGISTER)
        return base + row.cfa_offset & _MASK

    def _saved(self, place: Place, cfa: int) -> int | None:
        """A register of the caller, None where the copy does not hold it: nothing may need it."""
        try:
            return self._value(place, cfa)
        except (_Ended, DamagedError):
            return None

    def _value(self, place: Place, cfa: int) -> int | None:
        rule, value, expression = place
        if rule is Rule.AT_OFFSET:
            return self._read(cfa + value & _MASK)
        if rule is Rule.IS_OFFSET:
            return cfa + value & _MASK
        if rule is Rule.REGISTER:
            return self._registers[value] if value < len(self._registers) else None
        if rule is Rule.AT_EXPRESSION:
            return self._read(evaluate(expression, self._registers, self._read, cfa))
        if rule is Rule.IS_EXPRESSION:
            return evaluate(expression, self._registers, self._read, cfa)
        return None

    def _return_address(self, row: Row, cfa: int) -> int:
        place = next((place for register, place in row.places if register == row.return_register), None)
        if place and place[0] is Rule.UNDEFINED:
            raise _Ended(Ending.COMPLETE)
        if not place and row.return_register >= len(self._registers):
            raise DamagedError(f"the return address is in register {row.return_register}, which does not exist")
        value = self._value(place, cfa) if place else self._registers[row.return_register]
        if value is None:
            raise _Ended(Ending.TRUNCATED)
        if row.is_return_signed:
            value &= self._machine.address_mask
        return self._behind_probe(value, cfa)

    def _behind_probe(self, address: int, cfa: int) -> int:
        """The return address that the kernel has replaced by its trampoline's."""
        module = self._space.module_at(address) if address else None
        if module is None or not module.is_trampoline:
            return address
        original = self._thread.probed.get(cfa - self._machine.entry_to_cfa)
        if original is None:
            raise _Ended(Ending.FOREIGN_PROBE)
        return original

    def _read(self, address: int) -> int:
        at = address - self._thread.stack_vaddr
        if not 0 <= at <= len(self._thread.stack) - _WORD.size:
            raise _Ended(Ending.TRUNCATED)
        return int(_WORD.unpack_from(self._thread.stack, at)[0])
