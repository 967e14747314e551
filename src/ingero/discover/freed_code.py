"""Finds where an interpreter frees its code objects: the destructor of their type.

Source: CPython's PyTypeObject (Include/cpython/object.h): from 3.8 on tp_dealloc is the fifth word behind the header.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ingero.discover.elf import ElfFile, UnreadableElfError
from ingero.discover.instructions import probe_offset
from ingero.discover.interpreters import Interpreter
from ingero.discover.mappings import Mapping, parse_maps, read_maps
from ingero.discover.memory import ProcessMemory
from ingero.discover.processes import PROC

_DESTRUCTOR_AT = 32  # behind the object's header: size, name, two sizes of its objects


class NoDestructorError(ValueError):
    """The destructor of code objects is not found, or a probe on it would cost too much; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destructor:
    """A probe site. path: of the file; this process can open it while `held` exists. offset: of the probe, bytes."""

    path: str
    offset: int
    held: object = field(default=None, compare=False)


def code_destructor(pid: int, interpreter: Interpreter, proc: Path = PROC) -> Destructor:
    """The function that an interpreter calls for every code object before freeing it.

    Raises:
        NoDestructorError: see there.
        OSError: the process has ended, or may not be read.
    """
    with ProcessMemory(pid, proc) as memory:
        address = memory.word(pointer_at(interpreter))
    mapping = destructor_mapping(address, interpreter, read_maps(pid, proc))
    path = proc / str(pid) / "map_files" / mapping.range_name
    try:
        with ElfFile(path) as elf:  # not the process's memory: there another tracer may have put a breakpoint
            return Destructor(path=str(path), offset=offset_of_probe(elf, address - mapping.start + mapping.offset))
    except UnreadableElfError as error:
        raise NoDestructorError(str(error)) from error


def pointer_at(interpreter: Interpreter) -> int:
    """The address of the pointer to the destructor."""
    return interpreter.code_type + interpreter.layout.object_header_bytes + _DESTRUCTOR_AT


def destructor_mapping(address: int, interpreter: Interpreter, maps: bytes) -> Mapping:
    """The mapping that the destructor lies in.

    Raises:
        NoDestructorError: see there.
    """
    mapping = _mapping_of(address, list(parse_maps(maps)))
    if mapping is None or address not in interpreter.text:
        raise NoDestructorError(f"what frees its code objects, at {address:#x}, is not in {interpreter.file}")
    return mapping


def offset_of_probe(elf: ElfFile, offset: int) -> int:
    """The file offset of the probe. offset: of the function.

    Raises:
        NoDestructorError: it would cost too much.
    """
    point = probe_offset(elf.read_at(offset), elf.machine)
    if point.instruction.is_single_stepped:
        raise NoDestructorError(f"a probe at offset {offset:#x} of {elf.path} would be single-stepped")
    return offset + point.skip_bytes


def _mapping_of(address: int, mappings: list[Mapping]) -> Mapping | None:
    return next((one for one in mappings if one.inode and one.start <= address < one.end), None)
