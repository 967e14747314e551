"""Offsets in an interpreter that a stack walk needs: from the table of its minor version, or from its memory.

From 3.13 a process carries `_Py_DebugOffsets`; the table then says where in that each offset stands. Up to 3.12 the
table holds the offsets. A version that the table lacks is refused: nothing is guessed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

COOKIE = b"xdebugpy"  # how _Py_DebugOffsets begins
_DEBUG_OFFSETS_SINCE = (3, 13)
_HEADER = struct.Struct("<8sQQ")  # cookie, version, whether it is free-threaded
_MAX_OFFSET = 1 << 24
# what a walk reads at once (bpf/python_walk.h)
_INTERPRETER_BYTES, _COUNTING_BYTES, _THREAD_BYTES, _FRAME_BYTES, _KEY_BYTES = 96, 768, 192, 112, 128
_IN_KEY = ("code.name", "code.qualname", "code.line_table", "code.first_line")


class UnknownLayoutError(ValueError):
    """The layout of this interpreter is unknown; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonLayout:
    """offsets: by the names in python_layouts.json. string_state_shift: of `kind` in the bit field of a string."""

    version: tuple[int, int]
    is_free_threaded: bool
    offsets: Mapping[str, int]
    string_state_shift: int

    @property
    def object_header_bytes(self) -> int:
        """The size of what every Python object begins with."""
        return self.offsets["bytes.size"]


def debug_offsets_bytes(version: tuple[int, int]) -> int:
    """How many bytes at `_PyRuntime` `layout_of` needs for a version; 0: none."""
    return _table().get(_key(version), {}).get("size", 0)


def layout_of(version: tuple[int, int], debug_offsets: bytes) -> PythonLayout:
    """The layout of a version. debug_offsets: the memory at `_PyRuntime`, as much as `debug_offsets_bytes` says.

    Raises:
        UnknownLayoutError: the version is not known, or the memory is not what that version has.
    """
    fields = _table().get(_key(version))
    if fields is None:
        raise UnknownLayoutError(f"Python {_key(version)} is not supported: {supported_versions()}")
    if version < _DEBUG_OFFSETS_SINCE:
        return PythonLayout(version=version, is_free_threaded=False, offsets=fields, string_state_shift=2)
    return _from_memory(version, fields, debug_offsets)


def _from_memory(version: tuple[int, int], positions: Mapping[str, int], memory: bytes) -> PythonLayout:
    if len(memory) < positions["size"] or memory[:8] != COOKIE:
        raise UnknownLayoutError("its _PyRuntime does not begin with the debug offsets")
    _, hex_version, free_threaded = _HEADER.unpack_from(memory)
    if (hex_version >> 24, hex_version >> 16 & 0xFF) != version:
        raise UnknownLayoutError(f"its offsets are those of version {hex_version:#x}")
    offsets = {name: int.from_bytes(memory[at : at + 8], "little") for name, at in positions.items() if name != "size"}
    if any(value > _MAX_OFFSET for value in offsets.values()):
        raise UnknownLayoutError("its offsets are out of any range")
    if not is_within_reach(offsets):
        raise UnknownLayoutError("its threads, frames or code objects are larger than those of any known build")
    # PyCompactUnicodeObject adds the length and the address of a UTF-8 copy
    offsets["string.wide_data"] = offsets["string.ascii_data"] + 16
    for name in list(_not_used(offsets, is_free_threaded=bool(free_threaded))):
        offsets.pop(name, None)
    # 3.14t: `interned` became a byte of its own
    shift = 8 if free_threaded and version >= (3, 14) else 2
    return PythonLayout(
        version=version, is_free_threaded=bool(free_threaded), offsets=offsets, string_state_shift=shift
    )


def _not_used(offsets: Mapping[str, int], *, is_free_threaded: bool) -> Iterator[str]:
    if not is_free_threaded:  # one copy of the bytecode for all threads
        yield from ("frame.copy", "code.copies")
    # a count that would take a read of its own saves little
    if offsets.get("interpreter.freed_code", 0) - offsets["interpreter.next"] not in range(_COUNTING_BYTES - 7):
        yield "interpreter.freed_code"


def is_within_reach(offsets: Mapping[str, int]) -> bool:
    """Whether a walk, which reads a part of each object at once, finds there what it needs."""
    header, link = offsets["bytes.size"], offsets["interpreter.next"]
    reach = {"thread": range(_THREAD_BYTES - 7), "frame": range(_FRAME_BYTES - 7)}
    reach["interpreter.threads"] = range(link, link + _INTERPRETER_BYTES - 7)
    reach |= dict.fromkeys(_IN_KEY, range(header, header + _KEY_BYTES - 7))
    return all(
        offset in reach[part]
        for name, offset in offsets.items()
        for part in (name, name.partition(".")[0])
        if part in reach
    )


@cache
def _table() -> dict[str, dict[str, int]]:
    text = resources.files("ingero.discover").joinpath("python_layouts.json").read_text()
    table: dict[str, dict[str, int]] = json.loads(text)
    return table


def _key(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def supported_versions() -> str:
    """The supported versions as text, such as `3.8 to 3.14 are`."""
    versions = list(_table())
    return f"{versions[0]} to {versions[-1]} are"
