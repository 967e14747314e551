"""How much stack the functions of a compiled BPF object take, one inside the other, as Linux before 6.13 counts it.

Source: kernel/bpf/verifier.c of Linux 5.15, check_max_stack_depth() and update_stack_depth(); for the targets of calls
libbpf, bpf_object__reloc_code(). Those rules:

- A function takes as many bytes as its lowest access lies below r10, rounded up to 32, and never less than 32.
- A chain begins in a program and goes on through its calls and through each function whose address it takes (what it
  gives to bpf_loop); static and global functions count alike. It may take 512 bytes, in 8 functions.
- Conditions are ignored: dead code is removed only afterwards, so a call behind a constant that is 0 counts as well.

The verifier sees only accesses on paths that can be taken, with constants known; here every instruction counts. So a
function has at most the bytes told here, and fewer where what lies lowest is behind a constant that is 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

MAX_STACK_BYTES = 512  # MAX_BPF_STACK
MAX_FRAMES = 8  # MAX_CALL_FRAMES
_GRANULE = 32
_EXECUTABLE = 4  # SHF_EXECINSTR
_INSTRUCTION = struct.Struct("<BBhi")
_LOAD_ADDRESS, _CALL, _PSEUDO_CALL, _MOVE, _ADD = 0x18, 0x85, 1, 0xBF, 0x07
_LDX, _ST, _STX, _JUMP, _JUMP32 = 1, 2, 3, 5, 6  # classes of instructions


@dataclass(eq=False)
class Function:
    """A function. calls: the distinct functions that it calls or passes on, in the order of its instructions."""

    name: str
    stack_bytes: int
    calls: list[Function] = field(default_factory=list)


Chain = tuple[Function, ...]
Place = tuple[int, int]  # section, offset in it


def chain_bytes(chain: Chain) -> int:
    """The stack of functions that are inside one another."""
    return sum(function.stack_bytes for function in chain)


def chains_from(function: Function) -> Iterator[Chain]:
    """All call chains from a function to one that calls nothing."""
    if not function.calls:
        yield (function,)
    for called in function.calls:
        for rest in chains_from(called):
            yield (function, *rest)


def programs_of(path: Path) -> list[Function]:
    """The programs of an object: the functions outside .text."""
    with path.open("rb") as file:
        elf: Any = ELFFile(file)
        symbols = list(elf.get_section_by_name(".symtab").iter_symbols())
        functions = [symbol for symbol in symbols if symbol["st_info"]["type"] == "STT_FUNC"]
        sections = {one["st_shndx"]: elf.get_section(one["st_shndx"]) for one in functions}
        code, found = {}, {}
        for one in functions:
            where = begin, offset = one["st_shndx"], one["st_value"]
            code[where] = sections[begin].data()[offset : offset + one["st_size"]]
            found[where] = Function(one.name, stack_bytes(code[where]))
        relocated = _relocations(elf, symbols)
        for where, function in found.items():
            function.calls = [found[to] for to in dict.fromkeys(_callees(where, code[where], relocated))]
        return [one for where, one in found.items() if sections[where[0]].name != ".text"]


def stack_bytes(code: bytes) -> int:
    """The stack bytes of one function alone."""
    lowest = 0
    copies = {10: 0}  # registers that point into this function's stack, by how far from r10
    for operation, registers, offset, immediate in _INSTRUCTION.iter_unpack(code):
        to, source, kind = registers & 15, registers >> 4, operation & 7
        base = {_LDX: source, _ST: to, _STX: to}.get(kind)
        if base in copies:
            lowest = min(lowest, copies[base] + offset)
        if operation == _CALL:
            copies = {register: away for register, away in copies.items() if register > 5}
        elif operation == _MOVE and source in copies:
            copies[to] = copies[source]
        elif operation == _ADD and to in copies:
            copies[to] += immediate
            lowest = min(lowest, copies[to])
        elif operation and kind not in (_ST, _STX, _JUMP, _JUMP32):  # 0: the second half of an address
            copies.pop(to, None)
    return max(-(lowest // _GRANULE), 1) * _GRANULE


def _relocations(elf: Any, symbols: list[Any]) -> dict[Place, Place | None]:
    """Instructions that the loader fills in, and the code that each refers to; None if it is no code."""
    executable = {index for index, one in enumerate(elf.iter_sections()) if one["sh_flags"] & _EXECUTABLE}
    found: dict[Place, Place | None] = {}
    for section in elf.iter_sections("SHT_REL"):
        for one in section.iter_relocations():
            symbol = symbols[one["r_info_sym"]]
            is_code = symbol["st_shndx"] in executable
            found[section["sh_info"], one["r_offset"]] = (symbol["st_shndx"], symbol["st_value"]) if is_code else None
    return found


def _callees(begin: Place, code: bytes, relocated: dict[Place, Place | None]) -> Iterator[Place]:
    """The start of each function that a function calls, or whose address it takes."""
    for index, (operation, registers, _, immediate) in enumerate(_INSTRUCTION.iter_unpack(code)):
        at = (begin[0], begin[1] + index * _INSTRUCTION.size)
        if operation == _CALL and registers >> 4 == _PSEUDO_CALL:
            if target := relocated.get(at, at):
                yield target[0], target[1] + (immediate + 1) * _INSTRUCTION.size
        elif operation == _LOAD_ADDRESS and (target := relocated.get(at)):
            yield target[0], target[1] + immediate
