"""Call stacks of a recording: their frames, and which of them is the user's own line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from ingero.store.reader import Reader
from ingero.store.records import Stack

# Where packages are installed, and the standard library; and what stands for an installed torch in the demo.
_INSTALLED = re.compile(
    r"/(site|dist)-packages/|/lib(64)?/(python|pypy)\d(\.\d+)?t?/|/python\d+\.zip/|/ingero/demo/workloads/minitorch/"
)
# The demo's programs stand for the user's own, also where ingero is installed as a package.
_DEMO_PROGRAM = re.compile(r"/ingero/demo/workloads/(?!minitorch/)")
# What torch.compile has written: named after its content, in a folder named after the name (torch/_inductor)
_COMPILED = re.compile(r"/(?P<two>[a-z2-7]{2})/c(?P=two)[a-z2-7]{49}\.py$")
# Users have files of these names, too; nothing that waits for a GPU is in the library's.
_USERS_NAMES = frozenset({"code", "profile", "test"})
_LIBRARIES = (frozenset({"torch", "functorch", "triton", "numpy"}) | sys.stdlib_module_names) - _USERS_NAMES
_TYPED = re.compile(r"<(stdin|string|ipython-input-.*)>$")  # other names in angle brackets: code made by a library
_STRING = "<string>"
_GPU_LIBRARY = re.compile(r"lib(cuda|cudart|nccl)(\.|-|_)")  # their own frames do not show the caller

_STACKS_PER_QUERY = 5000
_MAX_FILES = 4096  # whose owner is kept: every frame of every sample asks


@dataclass(frozen=True, slots=True)
class PythonPlace:
    """A line that was executing. line: 0 where the compiler gave it none."""

    file: str
    line: int
    function: str

    @property
    def is_own(self) -> bool:
        """Whether it is in the user's own code: neither in an installed package nor in the standard library."""
        return _is_own(self.file)

    @property
    def short(self) -> str:
        """The place as text, with the file's name only."""
        return self._text(PurePath(self.file).name)

    @property
    def full(self) -> str:
        """The place as text, with the file's whole path."""
        return self._text(self.file)

    def _text(self, file: str) -> str:
        return f"{file}:{self.line} in {self.function}" if self.line else f"{file} in {self.function}"


@dataclass(frozen=True, slots=True)
class NativePlace:
    """A native function. symbol: `file+0x...` where the file has no name for the place; file: "" if not known."""

    symbol: str
    file: str

    @property
    def text(self) -> str:
        """The symbol, followed by its file where the symbol does not contain it."""
        if not self.file or self.symbol.startswith(f"{self.file}+"):
            return self.symbol
        return f"{self.symbol} ({self.file})"


@dataclass(frozen=True, slots=True)
class CallStack:
    """One stored stack, innermost first. note: what is missing and why, or where the stack is from; "" if nothing is.

    is_python_whole: no Python frame is missing. is_native_known: no native frame is missing; they
    end where those of the interpreter begin.
    """

    native: tuple[NativePlace, ...]
    python: tuple[PythonPlace, ...]
    note: str
    is_python_whole: bool = True
    is_native_known: bool = False

    @property
    def own(self) -> PythonPlace | None:
        """The innermost line of the user's own code; where there is none, the innermost line."""
        return own_place(self.python)

    @property
    def is_frameless(self) -> bool:
        """Whether its thread had no Python frames, as opposed to unknown ones."""
        return not self.python and self.is_python_whole

    @property
    def is_a_librarys(self) -> bool:
        """Whether it has no line of the user's own code and none can be missing: the stack of a library's thread."""
        return self.is_frameless or (bool(self.python) and not any(own_marks(self.python)))

    @property
    def is_in_gpu_library(self) -> bool:
        """Whether one of its native functions is in a library of CUDA or NCCL."""
        return any(_GPU_LIBRARY.match(place.file) for place in self.native)

    @property
    def issuer(self) -> NativePlace | None:
        """The native function that called into CUDA or NCCL."""
        return next((place for place in self.native if not _GPU_LIBRARY.match(place.file)), None)


def own_marks(places: Sequence[PythonPlace]) -> list[bool]:
    """For each frame of a stack, whether it is the user's own code.

    `<string>` is the user's where the program itself is (`python -c`), else what a library has compiled.
    """
    is_typed = bool(places) and places[-1].file == _STRING
    return [place.is_own and (is_typed or place.file != _STRING) for place in places]


def own_place(places: Sequence[PythonPlace]) -> PythonPlace | None:
    """The innermost line of the user's own code in a stack, innermost first; if there is none, the innermost line."""
    own = (place for place, is_own in zip(places, own_marks(places), strict=True) if is_own)
    return next(own, places[0] if places else None)


@lru_cache(maxsize=_MAX_FILES)
def _is_own(file: str) -> bool:
    if file.startswith("<"):
        return bool(_TYPED.match(file))
    if _DEMO_PROGRAM.search(file):
        return True
    return file != "?" and not (_INSTALLED.search(file) or _COMPILED.search(file) or _is_cut_library(file))


def _is_cut_library(file: str) -> bool:
    """Whether a file is PyTorch's or Python's own, named without the folder that it is installed in.

    PyTorch's profiler writes paths from the entry of sys.path on: torch/nn/modules/module.py, threading.py.
    """
    return file.partition("/")[0].removesuffix(".py") in _LIBRARIES


def call_stack(stored: Stack) -> CallStack:
    """The call stack of a stored stack."""
    frames = json.loads(stored.frames) if stored.frames else []
    return stack_of(
        frames,
        stored.note,
        is_python_whole=stored.is_python_whole,
        is_native_known=bool(stored.ips) and not stored.note,
    )


def stack_of(
    frames: Sequence[Mapping[str, Any]], note: str, *, is_python_whole: bool = True, is_native_known: bool = False
) -> CallStack:
    """A stack from its frames as they are stored."""
    return CallStack(
        native=tuple(NativePlace(frame["symbol"], frame.get("file", "")) for frame in frames if "symbol" in frame),
        python=tuple(
            PythonPlace(frame["py_file"], frame.get("py_line", 0), frame.get("py_func", "?"))
            for frame in frames
            if "py_file" in frame
        ),
        note=note,
        is_python_whole=is_python_whole,
        is_native_known=is_native_known,
    )


class StackBook:
    """The stacks of one recording, each read once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[int, CallStack | None] = {0: None}

    def read(self, hashes: Iterable[int]) -> None:
        """Reads the stacks with these hashes ahead, in few queries."""
        missing = sorted(set(hashes) - self._known.keys())
        self._known |= dict.fromkeys(missing)
        for at in range(0, len(missing), _STACKS_PER_QUERY):
            found = self._reader.stacks(missing[at : at + _STACKS_PER_QUERY])
            self._known |= {stored.hash: call_stack(stored) for stored in found}

    def of(self, stack_hash: int) -> CallStack | None:
        """The stack with this hash; None for 0, and where it is not stored."""
        self.read([stack_hash])
        return self._known[stack_hash]
