"""Walks the Python frames of a blocked thread in the memory of its process.

The same walk as in bpf/python_frames.h, from outside: nothing may be running there that changes what is read, or a
frame could be wrong. The caller makes sure of that.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass

from ingero.capture.stacks.python_layouts import BYTES, UNITS
from ingero.decode.python_code import CODE_BYTES, CodeObject, Read, code_key, from_memory

_WORD = struct.Struct("<Q")
_FRAME_BYTES = 136  # the largest offset in a frame, and eight bytes
_MAX_FRAMES = 1024
_MAX_ENTRY_FRAMES = 256  # of the interpreter itself, between Python frames
_MAX_INTERPRETERS, _MAX_THREADS = 256, 4096

KnownCode = MutableMapping[tuple[int, int], CodeObject]
"""Code objects read earlier, by key and address."""


class BrokenWalkError(Exception):
    """The memory is inconsistent: the thread is not blocked, or its interpreter has another layout."""


@dataclass(frozen=True, slots=True)
class WalkedFrame:
    """file, line (0: the compiler gave it none) and qualified name of one function that has not returned."""

    file: str
    line: int
    function: str


def python_frames(
    read: Read,
    layout: Mapping[str, int],
    version: tuple[int, int],
    thread_pointer: int,
    known: KnownCode | None = None,
) -> list[WalkedFrame]:
    """The Python frames of a thread, innermost first; empty if it has none.

    layout: the fields of `struct python_layout`. known: filled, and asked first.

    Raises:
        BrokenWalkError: see there; no part of the walk is to be trusted then.
        OSError: the memory is not there (any more).
    """
    thread = _thread(read, layout, thread_pointer + layout["thread_bias"])
    frame = _top_frame(read, layout, thread) if thread else 0
    found: list[WalkedFrame] = []
    known = {} if known is None else known
    for _ in range(_MAX_FRAMES + _MAX_ENTRY_FRAMES):
        if not frame:
            return found
        raw = read(frame, _FRAME_BYTES)
        code = _at(raw, layout["frame_code"]) & ~7  # 3.14 tags references
        is_entry = layout["has_owner"] and raw[layout["frame_owner"]] >= layout["owner_skipped"]
        if not is_entry and code and code != layout["none"]:
            found.append(_frame(read, layout, version, raw, code, known))
        frame = _at(raw, layout["frame_previous"])
    raise BrokenWalkError(f"more than {_MAX_FRAMES} frames")


def _thread(read: Read, layout: Mapping[str, int], self: int) -> int:
    """The interpreter's thread state of an OS thread: the one with a frame if it is in several interpreters."""
    first = 0
    for thread in _threads(read, layout):
        if _word(read, thread + layout["thread_id"]) == self:
            if _top_frame(read, layout, thread):
                return thread
            first = first or thread
    return first


def _threads(read: Read, layout: Mapping[str, int]) -> Iterator[int]:
    walked = interpreters = 0
    interpreter = _word(read, layout["runtime"] + layout["interpreters"])
    while interpreter:
        interpreters += 1
        if interpreters > _MAX_INTERPRETERS:
            raise BrokenWalkError(f"more than {_MAX_INTERPRETERS} interpreters")
        thread = _word(read, interpreter + layout["interpreter_threads"])
        while thread:
            walked += 1
            if walked > _MAX_THREADS:
                raise BrokenWalkError(f"more than {_MAX_THREADS} threads")
            yield thread
            thread = _word(read, thread + layout["thread_next"])
        interpreter = _word(read, interpreter + layout["interpreter_next"])


def _top_frame(read: Read, layout: Mapping[str, int], thread: int) -> int:
    frame = _word(read, thread + layout["thread_frame"])
    return _word(read, frame + layout["cframe_frame"]) if layout["has_cframe"] and frame else frame


def _frame(
    read: Read, layout: Mapping[str, int], version: tuple[int, int], frame: bytes, address: int, known: KnownCode
) -> WalkedFrame:
    raw = read(address, CODE_BYTES)
    if _at(raw, layout["header_bytes"] - 8) != layout["code_type"]:
        raise BrokenWalkError("a frame without a code object")
    place = code_key(read, raw, layout), address
    code = known.get(place) or from_memory(read, address, place[0], layout)
    if code is None:
        raise BrokenWalkError("a code object that cannot be read")
    known[place] = code
    return WalkedFrame(code.file, code.line(version, _instruction(read, layout, frame, address)) or 0, code.name)


def _instruction(read: Read, layout: Mapping[str, int], frame: bytes, code: int) -> int:
    """The position of a frame in its code, in bytes; negative: not started."""
    at = layout["frame_instruction"]
    if layout["instruction"] in (BYTES, UNITS):
        number = int.from_bytes(frame[at : at + 4], "little", signed=True)
        return number if layout["instruction"] == BYTES or number < 0 else 2 * number
    begin = code + layout["code_instructions"]
    if layout["has_copies"]:  # each thread runs its own copy of the instructions
        copy = int.from_bytes(frame[layout["frame_copy"] :][:4], "little")
        begin = _word(read, _word(read, code + layout["code_copies"]) + 8 + 8 * copy)
    return _at(frame, at) - begin


def _word(read: Read, address: int) -> int:
    return int(_WORD.unpack(read(address, _WORD.size))[0])


def _at(data: bytes, offset: int) -> int:
    return int(_WORD.unpack_from(data, offset)[0])
