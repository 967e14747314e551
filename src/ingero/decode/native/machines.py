"""What unwinding must know of a processor: DWARF register numbers, and what a call instruction looks like.

Source: System V ABI, AMD64 supplement 1.0, figure 3.36; DWARF for the Arm 64-bit architecture, 4.1; the vendors'
instruction manuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_X86_CALL_NEAR = 0xE8
_X86_GROUP_5, _X86_CALL = 0xFF, 2
_ARM_BL, _ARM_BL_MASK = 0x94000000, 0xFC000000
_ARM_BLR, _ARM_BLR_MASK = 0xD63F0000, 0xFEFFF000  # with and without pointer authentication


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One processor architecture.

    registers: how many DWARF numbers it uses. sp, pc, fp: the stack pointer's, program counter's and frame pointer's.
    entry_to_cfa: from the stack pointer at a function's first instruction to its canonical frame address.
    address_mask: what is left of a return address without its authentication code.
    call_bytes: the length of the longest call instruction. is_call: whether such bytes end in one.
    """

    registers: int
    sp: int
    pc: int
    fp: int
    entry_to_cfa: int
    address_mask: int
    call_bytes: int
    is_call: Callable[[bytes], bool]


def _is_x86_call(code: bytes) -> bool:
    if len(code) >= 5 and code[-5] == _X86_CALL_NEAR:
        return True
    return any(_is_indirect_call(code[-size:]) for size in (2, 3, 4, 6, 7) if len(code) >= size)


def _is_indirect_call(code: bytes) -> bool:
    """`call *...` of exactly these bytes, which follow any prefixes."""
    opcode, operand = code[0], code[1]
    if opcode != _X86_GROUP_5 or operand >> 3 & 7 != _X86_CALL:
        return False
    mode, base = operand >> 6, operand & 7
    size = 2
    if mode != 3 and base == 4:  # a scale-index-base byte follows
        size += 1
        if mode == 0 and len(code) > 2 and code[2] & 7 == 5:
            size += 4
    if mode == 1:
        size += 1
    elif mode == 2 or (mode == 0 and base == 5):
        size += 4
    return len(code) == size


def _is_arm_call(code: bytes) -> bool:
    word = int.from_bytes(code[-4:], "little")
    return len(code) >= 4 and (word & _ARM_BL_MASK == _ARM_BL or word & _ARM_BLR_MASK == _ARM_BLR)


MACHINES = {
    "x86_64": Machine(
        registers=17, sp=7, pc=16, fp=6, entry_to_cfa=8, address_mask=(1 << 64) - 1, call_bytes=7, is_call=_is_x86_call
    ),
    "aarch64": Machine(
        registers=33,
        sp=31,
        pc=32,
        fp=29,
        entry_to_cfa=0,
        address_mask=(1 << 48) - 1,
        call_bytes=4,
        is_call=_is_arm_call,
    ),
}
