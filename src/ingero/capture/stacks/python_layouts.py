"""Tells the kernel side where an interpreter keeps its frames: a row of `python_layouts` per process slot."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingero.discover.interpreters import Interpreter

BYTES, UNITS, POINTER = 0, 1, 2  # enum python_instruction
_OWNED_BY_C = 3  # frame owners from here on are entry frames of the interpreter itself (3.12 and later)
_FIELDS = {  # of struct python_layout -> python_layouts.json
    "interpreters": "runtime.interpreters",
    "interpreter_next": "interpreter.next",
    "interpreter_threads": "interpreter.threads",
    "interpreter_freed": "interpreter.freed_code",
    "thread_previous": "thread.previous",
    "thread_next": "thread.next",
    "thread_interpreter": "thread.interpreter",
    "thread_id": "thread.thread_id",
    "thread_frame": "thread.frame",
    "cframe_frame": "cframe.frame",
    "frame_previous": "frame.previous",
    "frame_code": "frame.code",
    "frame_instruction": "frame.instruction",
    "frame_owner": "frame.owner",
    "frame_copy": "frame.copy",
    "code_filename": "code.filename",
    "code_line_table": "code.line_table",
    "code_first_line": "code.first_line",
    "code_instructions": "code.instructions",
    "code_copies": "code.copies",
    "header_bytes": "bytes.size",
    "bytes_size": "bytes.size",
    "bytes_data": "bytes.data",
    "string_state": "string.state",
    "string_length": "string.length",
    "string_ascii_data": "string.ascii_data",
    "string_wide_data": "string.wide_data",
}


def layout_row(interpreter: Interpreter, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The `struct python_layout` of an interpreter, as an array of one."""
    layout, version = interpreter.layout, interpreter.version
    row = np.zeros(1, dtype)
    for field, name in _FIELDS.items():
        row[field] = layout.offsets.get(name, 0)
    row["runtime"], row["none"], row["code_type"] = interpreter.runtime, interpreter.none, interpreter.code_type
    row["thread_bias"] = interpreter.thread_bias
    row["text_begin"], row["text_end"] = interpreter.text.start, interpreter.text.stop
    row["interpreter_collecting"] = _collecting(interpreter)
    row["code_name"] = layout.offsets.get("code.qualname", layout.offsets["code.name"])
    row["string_state_shift"] = layout.string_state_shift
    row["instruction"] = POINTER if version >= (3, 11) else UNITS if version == (3, 10) else BYTES
    row["has_cframe"] = "cframe.frame" in layout.offsets
    row["has_owner"] = version >= (3, 12)
    row["owner_skipped"] = _OWNED_BY_C
    row["has_copies"] = "code.copies" in layout.offsets
    row["has_half_word"] = version == (3, 11)  # co_warmup counts down beside the flags
    row["is_key_short"] = version <= (3, 11)
    return row


def _collecting(interpreter: Interpreter) -> int:
    """The address where an interpreter marks that it collects garbage; 0: not known, or not per thread."""
    offsets = interpreter.layout.offsets
    if interpreter.layout.is_free_threaded or "gc.collecting" not in offsets:
        return 0
    return offsets["interpreter.gc"] + offsets["gc.collecting"]
