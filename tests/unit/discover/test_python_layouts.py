"""Where interpreters keep their frames: what the kernel side reads of an object at once must hold all that it needs."""

from __future__ import annotations

import json
import struct
from importlib.resources import files

import pytest

from ingero.discover.python_layouts import (
    COOKIE,
    UnknownLayoutError,
    debug_offsets_bytes,
    is_within_reach,
    layout_of,
)

_TRUE = {  # of 3.13.0; where `_Py_DebugOffsets` tells it -> the offset
    40: 632,  # runtime.interpreters
    64: 7264,  # interpreter.next
    72: 7344,  # interpreter.threads
    168: 8,  # thread.next
    176: 16,  # thread.interpreter
    192: 152,  # thread.thread_id
    184: 72,  # thread.frame
    232: 8,  # frame.previous
    248: 56,  # frame.instruction
    264: 70,  # frame.owner
    280: 112,  # code.filename
    288: 120,  # code.name
    296: 128,  # code.qualname
    304: 136,  # code.line_table
    312: 68,  # code.first_line
    344: 200,  # code.instructions
    520: 16,  # bytes.size
    528: 32,  # bytes.data
}
_VERSION = (3, 13)


def debug_offsets(**changed: int) -> bytes:
    """The beginning of `_PyRuntime` of 3.13.0. changed: by position, `at_304=160`."""
    memory = bytearray(debug_offsets_bytes(_VERSION))
    memory[:8] = COOKIE
    memory[8:16] = struct.pack("<Q", 0x030D00F0)
    for at, offset in {**_TRUE, **{int(name.removeprefix("at_")): value for name, value in changed.items()}}.items():
        struct.pack_into("<Q", memory, at, offset)
    return bytes(memory)


def newer_debug_offsets(freed_code: int) -> bytes:
    """As of 3.14. freed_code: where an interpreter counts the code objects that it has freed."""
    table = json.loads(files("ingero.discover").joinpath("python_layouts.json").read_text())
    offsets = {name: _TRUE.get(at, 0) for name, at in table["3.13"].items()} | {"interpreter.freed_code": freed_code}
    memory = bytearray(debug_offsets_bytes((3, 14)))
    memory[:8] = COOKIE
    memory[8:16] = struct.pack("<Q", 0x030E0AF0)
    for name, at in table["3.14"].items():
        if name != "size":
            struct.pack_into("<Q", memory, at, offsets.get(name, 0))
    return bytes(memory)


@pytest.mark.parametrize("minor", range(8, 13))
def test_what_is_read_at_once_holds_what_a_walk_needs(minor: int) -> None:
    assert is_within_reach(layout_of((3, minor), b"").offsets)


def test_the_offsets_that_a_process_carries_are_taken() -> None:
    assert layout_of(_VERSION, debug_offsets()).offsets["code.line_table"] == 136


@pytest.mark.parametrize("changed", [{"at_72": 7360}, {"at_192": 192}, {"at_248": 112}, {"at_304": 144}, {"at_312": 8}])
def test_offsets_beyond_what_is_read_at_once_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(UnknownLayoutError, match="larger than those of any known build"):
        layout_of(_VERSION, debug_offsets(**changed))


def test_from_3_14_on_it_is_known_where_an_interpreter_counts_the_code_that_it_frees() -> None:
    assert layout_of((3, 14), newer_debug_offsets(freed_code=7992)).offsets["interpreter.freed_code"] == 7992


@pytest.mark.parametrize("freed_code", [7264 + 768 - 7, 7264 - 8, 0])
def test_a_count_of_freed_code_that_is_not_read_with_its_interpreter_is_done_without(freed_code: int) -> None:
    assert "interpreter.freed_code" not in layout_of((3, 14), newer_debug_offsets(freed_code)).offsets
