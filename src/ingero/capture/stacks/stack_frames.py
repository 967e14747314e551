"""Merges the stack of a call: native frames from the call up to the interpreter, then the Python frames."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ingero.decode.native.unwinder import Ending
from ingero.store.writing import tables
from ingero.store.writing.tables import Rows


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """One Python frame: file, executing line (0: the compiler gave it none) and qualified name."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class NativeFrame:
    """One native frame: address, file name, and demangled symbol ("" if none covers the address)."""

    address: int
    file: str
    symbol: str
    offset: int


@dataclass(frozen=True, slots=True)
class NativeFrames:
    """Native frames, innermost first. ending: why there are no more."""

    frames: tuple[NativeFrame, ...]
    ending: Ending
    detail: str


@dataclass(frozen=True, slots=True)
class MergedStack:
    """A stack as stored: JSON arrays of addresses and of frames. note: what is missing and why, "" if complete.

    is_python_whole: no Python frame is missing.
    """

    ips: str
    frames: str
    note: str
    is_python_whole: bool = True


def merge(
    native: NativeFrames | None,
    python: Sequence[PythonFrame] | None,
    interpreter: str,
    *,
    note: str = "",
    is_python_whole: bool = True,
) -> MergedStack:
    """Joins both parts of a stack.

    native: None where no copy of the stack was taken. python: None where the process has no readable interpreter.
    interpreter: the file that holds it: native frames end there, for what it does is in the Python frames.
    """
    shown: list[NativeFrame] = []
    reached = False
    for frame in native.frames if native else ():
        if python and frame.file == interpreter:
            reached = True
            break
        shown.append(frame)
    frames = [_native(frame) for frame in shown] + [_python(frame) for frame in python or ()]
    missing = "" if native is None or reached or native.ending is Ending.COMPLETE else _missing(native)
    return MergedStack(
        ips=json.dumps([f"{frame.address:#x}" for frame in shown]) if native is not None else "",
        frames=json.dumps(frames, ensure_ascii=False),
        note="; ".join(part for part in (missing, note) if part),
        is_python_whole=is_python_whole,
    )


def stack_row(number: int, stack: MergedStack, process: int) -> Rows:
    """The row of `raw_stacks` of a stack. number: its hash; process: its number in the recording."""
    return tables.STACKS.rows(
        1,
        hash=number,
        ips=stack.ips,
        frames=stack.frames,
        note=stack.note,
        process=process,
        is_python_whole=stack.is_python_whole,
    )


def _missing(native: NativeFrames) -> str:
    detail = f": {native.detail}" if native.detail else ""
    return f"native frames end early: {native.ending.value}{detail}"


def _native(frame: NativeFrame) -> dict[str, object]:
    symbol = frame.symbol or f"{frame.file}+{frame.offset:#x}"
    return {"ip": f"{frame.address:#x}", "symbol": symbol, "file": frame.file}


def _python(frame: PythonFrame) -> dict[str, object]:
    return {"py_file": frame.file, "py_func": frame.function, "py_line": frame.line}
