"""Which Python runs a process, by the files it has mapped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ingero.discover.mappings import read_maps
from ingero.discover.processes import PROC

_LIBRARY = re.compile(rb"/libpython(\d)\.(\d+)(t?)d?\.so[^/\n]*$", re.MULTILINE)
_EXECUTABLE = re.compile(r"/python(\d)\.(\d+)(t?)d?(?: \(deleted\))?\Z")
# Every interpreter has a compiled module or two of its own version open; the last resort for a renamed executable.
_MODULE = re.compile(rb"\.cpython-(\d)(\d+)(t?)d?-[^/\n]*\.so$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A CPython. is_free_threaded: built without the interpreter lock."""

    version: tuple[int, int]
    is_free_threaded: bool

    def __str__(self) -> str:
        """Such as `Python 3.12`."""
        return f"Python {self.version[0]}.{self.version[1]}{' free-threaded' if self.is_free_threaded else ''}"


def interpreter_of(pid: int, proc: Path = PROC) -> Interpreter | None:
    """The interpreter of a process; None where it is no Python, has gone, or may not be looked at."""
    try:
        maps = read_maps(pid, proc)
        executable = str((proc / str(pid) / "exe").readlink())
    except OSError:
        return None
    found = _LIBRARY.search(maps) or _EXECUTABLE.search(executable) or _MODULE.search(maps)
    if found is None:
        return None
    major, minor, threading = (part.decode() if isinstance(part, bytes) else part for part in found.groups())
    return Interpreter(version=(int(major), int(minor)), is_free_threaded=threading == "t")
