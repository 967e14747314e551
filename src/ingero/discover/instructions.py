"""Chooses where in a function's first bytes a probe goes, by the cost of the instruction there.

The kernel emulates a few instructions at a probe; every other one is single-stepped, which cost 33 times as much where
it was measured (16 us against 0.48 us a hit, Linux 6.18 in a virtual machine). Functions built for indirect branch
tracking begin with `endbr64`, which is single-stepped; the instruction after it usually is not.

Source: Linux arch/x86/kernel/uprobes.c (branch_setup_xol_ops, push_setup_xol_ops).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

SINGLE_STEP_COST_RATIO = 33  # measured against an emulated instruction; less on bare metal

_ENDBR64 = bytes.fromhex("f30f1efa")
_NOP5 = bytes.fromhex("0f1f440000")


class FirstInstruction(enum.Enum):
    """The kind of instruction under a probe, as far as its cost depends on it."""

    NOP = "nop"
    PUSH = "push"
    JUMP = "jump or call"
    OTHER = "other"
    NOT_CLASSIFIED = "not classified"  # another architecture than x86-64

    @property
    def is_single_stepped(self) -> bool:
        """Whether each hit pays for a single step (about `SINGLE_STEP_COST_RATIO` times as much)."""
        return self is FirstInstruction.OTHER


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """Where to probe: `skip_bytes` behind the function's symbol, on an instruction of this kind."""

    skip_bytes: int
    instruction: FirstInstruction


def probe_offset(code: bytes, machine: str) -> ProbePoint:
    """Chooses the probe point of a function from its first bytes.

    code: the first 16 bytes; fewer at the end of a file.
    machine: the ELF name, EM_X86_64 or EM_AARCH64. On arm64 the probe stays at the symbol: behind `paciasp` the return
        address is signed and a return probe would crash the process.
    """
    if machine != "EM_X86_64":
        return ProbePoint(0, FirstInstruction.NOT_CLASSIFIED)
    if code.startswith(_ENDBR64):
        behind = _classify(code[len(_ENDBR64) :])
        if behind is not FirstInstruction.OTHER:
            return ProbePoint(len(_ENDBR64), behind)
    return ProbePoint(0, _classify(code))


def _classify(code: bytes) -> FirstInstruction:
    opcode = code.lstrip(b"\x66")  # `66 90` is a nop with a prefix
    if opcode[:1] == b"\x90" or code.startswith(_NOP5):
        return FirstInstruction.NOP
    if _is_push(code):
        return FirstInstruction.PUSH
    if code[:1] in (b"\xe8", b"\xe9", b"\xeb") or (code[:1] == b"\x0f" and code[1:2] and code[1] >> 4 == 8):
        return FirstInstruction.JUMP
    return FirstInstruction.OTHER


def _is_push(code: bytes) -> bool:
    """`push` of a 64-bit register: 50-57, or 41 50-57 for r8 to r15."""
    opcode = code[1:2] if code[:1] == b"\x41" else code[:1]
    return bool(opcode) and opcode[0] & 0xF8 == 0x50
