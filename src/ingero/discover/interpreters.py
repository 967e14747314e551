"""Finds the CPython interpreter in a process and verifies that its frames can be read, or says why not.

Source: CPython's public names `_PyRuntime`, `Py_Version` (3.11), `PyCode_Type`; PyMemberDef in Include/descrobject.h.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath

from ingero.discover.elf import ElfFile, UnreadableElfError
from ingero.discover.file_systems import kept_mount
from ingero.discover.mappings import Mapping, parse_maps, read_maps
from ingero.discover.memory import ProcessMemory, UnreadableMemoryError
from ingero.discover.processes import PROC
from ingero.discover.python_layouts import (
    PythonLayout,
    UnknownLayoutError,
    debug_offsets_bytes,
    layout_of,
    supported_versions,
)
from ingero.discover.symbol_table import first_in_section

_SYMBOLS = ("_PyRuntime", "Py_Version", "PyCode_Type", "_Py_NoneStruct")
_LIBRARY = re.compile(r"libpython3")
_LIBC = re.compile(r"lib(c|pthread)[.-]")
_LOADER = re.compile(r"ld-(linux|\d)")  # of glibc
_PTHREAD_SIZE = "_thread_db_sizeof_pthread"
_LOOKS_LIKE_PYTHON = re.compile(r"(?:lib)?python3?")
_OTHER_KINDS = {"PyPy": re.compile(r"(?:lib)?pypy3?"), "GraalPy": re.compile(r"graalpy|libpythonvm")}
_ANY_PYTHON = "Py_GetVersion"
_CACHE_TAG = re.compile(rb"(?<=\0)cpython-(3\d{1,2})(?=\0)")
_CACHE_TAG_BYTES = 16
_DELETED = " (deleted)"
_MISSING_RIGHT = "it may not be opened: CAP_CHECKPOINT_RESTORE or CAP_DAC_READ_SEARCH is missing"
_MIN_CODE_BYTES = 1 << 20  # CPython's own is twice that
_VERSION_IN_NAME = re.compile(r"python(\d)\.(\d+)")
_MEMBERS_AT = 224  # PyTypeObject.tp_members behind the object's header
_MEMBER_BYTES, _MEMBER_OFFSET_AT = 40, 16  # PyMemberDef
_MAX_MEMBERS = 64
_MEMBERS = {  # Python's name of a member -> ours; each must lie where the layout says
    "co_filename": "code.filename",
    "co_name": "code.name",
    "co_qualname": "code.qualname",
    "co_linetable": "code.line_table",
    "co_lnotab": "code.line_table",
    "co_firstlineno": "code.first_line",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A CPython whose frames can be read.

    file: the name of the program or library that holds it. runtime, code_type, none: addresses in the process of
    `_PyRuntime`, `PyCode_Type` and `None`. thread_bias: pthread_self() minus the processor's thread pointer.
    text: where its own code is. runtime_bytes: the length of `_PyRuntime`; 0: not known. debug_offsets: the memory that
    the layout was made of.
    """

    file: str
    layout: PythonLayout
    runtime: int
    code_type: int
    none: int
    thread_bias: int
    text: range = range(0)
    runtime_bytes: int = 0
    debug_offsets: bytes = b""

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor."""
        return self.layout.version

    @property
    def lock(self) -> range:
        """The address range of the interpreter lock: it is part of `_PyRuntime`, other locks are not."""
        return range(self.runtime, self.runtime + (0 if self.layout.is_free_threaded else self.runtime_bytes))

    def __str__(self) -> str:
        """Such as `Python 3.12`."""
        threads = " free-threaded" if self.layout.is_free_threaded else ""
        return f"Python {self.version[0]}.{self.version[1]}{threads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableInterpreter:
    """A CPython whose frames cannot be read, and why. is_starting: it may be readable in a moment."""

    file: str
    reason: str
    is_starting: bool = False

    def __str__(self) -> str:
        """Why no line of its code can be shown."""
        return f"{self.file}, no Python lines: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterFile:
    """A file that may hold an interpreter. start, offset: of its first mapping; text: where its code is."""

    path: str
    start: int
    offset: int
    text: range = range(0)

    @property
    def file(self) -> str:
        """The name of the file."""
        return PurePath(self.path).name


@dataclass(slots=True)
class ExaminedFiles:
    """Result of examining candidates. place: index of the one with the interpreter. problems: by index, why one that
    holds an interpreter cannot be read; "" of one that could not be opened for lack of permission.
    """

    interpreter: Interpreter | UnreadableInterpreter | None = None
    place: int = -1
    problems: dict[int, str] = field(default_factory=dict)


class ProcessFiles:
    """The files of a process that are needed to find its interpreter, read in this process.

    Raises:
        OSError: from all; it has ended, may not be read, or does not answer.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid, self._proc = pid, proc

    def maps(self) -> bytes:
        """The text of /proc/PID/maps."""
        return read_maps(self._pid, self._proc)

    def program(self) -> str:
        """The path of the program."""
        return str((self._proc / str(self._pid) / "exe").readlink())

    def examine(
        self, candidates: Sequence[InterpreterFile], libc: Sequence[InterpreterFile], mappings: Sequence[Mapping]
    ) -> ExaminedFiles:
        """Examines candidates; see the function `examine`. mappings: of the candidates, then of the C library."""

        def open_candidate(place: int) -> ElfFile:
            return ElfFile(self._proc / str(self._pid) / "map_files" / mappings[place].range_name)

        return examine(candidates, libc, open_candidate, lambda: ProcessMemory(self._pid, self._proc))


def find_interpreter(
    pid: int, proc: Path = PROC, files: ProcessFiles | None = None
) -> Interpreter | UnreadableInterpreter | None:
    """The interpreter of a process; None if it has none, or has ended.

    files: who reads what is the process's; None: it is read here and now.
    """
    files = files or ProcessFiles(pid, proc)
    try:
        mappings = list(parse_maps(files.maps()))
        program = files.program().removesuffix(_DELETED)
        first, libc = _candidates(mappings, program), _c_library(mappings)
        candidates = [_candidate(one, mappings) for one in first]
        found = files.examine(candidates, [_candidate(one, mappings) for one in libc], [*first, *libc])
    except (TimeoutError, BlockingIOError):
        return not_answered(pid)
    except OSError:
        return None
    if found.interpreter:
        return found.interpreter
    if _is_loading(mappings):
        name = PurePath(program).name
        return UnreadableInterpreter(file=name, reason="its libraries are being loaded", is_starting=True)
    problems = (
        UnreadableInterpreter(file=candidates[place].file, reason=reason)
        if reason
        else _closed(pid, first[place], proc)
        for place, reason in sorted(found.problems.items())
    )
    return _of_another_kind(mappings, program) or next(filter(None, problems), None)


def not_answered(pid: int) -> UnreadableInterpreter:
    """The result for a process that does not answer: nothing is known of its program."""
    return UnreadableInterpreter(file=f"process {pid}", reason="it does not answer", is_starting=True)


def _candidate(mapping: Mapping, mappings: list[Mapping]) -> InterpreterFile:
    text = _text(mapping.path, mappings)
    return InterpreterFile(path=mapping.path, start=mapping.start, offset=mapping.offset, text=text)


def _c_library(mappings: list[Mapping]) -> list[Mapping]:
    """The C library, needed for the size of its thread structure; not on x86-64."""
    if platform.machine() == "x86_64":
        return []
    return [one for one in mappings if _LIBC.match(PurePath(one.path).name) and not one.offset]


def examine(
    candidates: Sequence[InterpreterFile],
    libc: Sequence[InterpreterFile],
    open_candidate: Callable[[int], ElfFile],
    open_memory: Callable[[], ProcessMemory],
) -> ExaminedFiles:
    """Finds the interpreter in files, and verifies in the process's memory that its frames can be read.

    open_candidate: opens the file of a candidate by its place; behind them come those of the C library.
    """
    found = ExaminedFiles()
    for place, candidate in enumerate(candidates):
        try:
            with open_candidate(place) as elf:
                image = _image(elf, candidate)
        except PermissionError:
            found.problems[place] = ""
            continue
        except (OSError, UnreadableElfError):
            continue
        if isinstance(image, _InterpreterImage):
            bias_in = partial(_thread_bias, list(enumerate(libc, len(candidates))), open_candidate)
            found.interpreter, found.place = _prove(candidate, image, open_memory, bias_in), place
            return found
        if image:
            found.problems[place] = image
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _InterpreterImage:
    """The interpreter in a file. addresses: in the process; tag: 310 of `cpython-310`, or empty."""

    addresses: dict[str, int]
    runtime_bytes: int
    tag: str


def _image(elf: ElfFile, mapping: InterpreterFile) -> _InterpreterImage | str:
    """The interpreter in a file; why there is one that cannot be read; "" where there is none."""
    symbols, bias = elf.data(_SYMBOLS), elf.bias(mapping.start, mapping.offset)
    if "_PyRuntime" in symbols and bias is not None:
        return _InterpreterImage(
            addresses={name: bias + vaddr for name, vaddr in symbols.items()},
            runtime_bytes=elf.data_bytes("_PyRuntime"),
            tag="" if "Py_Version" in symbols else _tag(elf),
        )
    if elf.functions([_ANY_PYTHON]):
        return f"a Python older than any that is supported: {supported_versions()}"
    if not elf.soname and (tag := _tag(elf)):
        return (
            f"Python 3.{tag[1:]} is linked into it and its symbols are hidden; "
            "link it with -Wl,--export-dynamic, or run it with an interpreter that is not built in"
        )
    return ""


def _tag(elf: ElfFile) -> str:
    """The version in the cache tag of a CPython (PEP 3147)."""
    found = first_in_section(elf, ".rodata", _CACHE_TAG, _CACHE_TAG_BYTES)
    return found[1].decode() if found else ""


def _closed(pid: int, mapping: Mapping, proc: Path) -> UnreadableInterpreter | None:
    """Why a file that looks like an interpreter may not be opened; None for one that does not."""
    name = PurePath(mapping.path).name
    if not _LOOKS_LIKE_PYTHON.match(name):
        return None
    mount = kept_mount(pid, mapping.device, proc)
    why = f"{mount.reason}; {mount.way_out}" if mount else _MISSING_RIGHT
    return UnreadableInterpreter(file=name, reason=why)


def _of_another_kind(mappings: list[Mapping], program: str) -> UnreadableInterpreter | None:
    """An interpreter other than CPython among the mappings or the program, with the reason; None if there is none."""
    for path in dict.fromkeys((*(mapping.path for mapping in mappings), program)):
        name = PurePath(path).name
        for kind, pattern in _OTHER_KINDS.items():
            if pattern.match(name):
                reason = (
                    f"{kind} keeps its frames otherwise than CPython does; run the program with CPython to see them"
                )
                return UnreadableInterpreter(file=name, reason=reason)
    return None


def _is_loading(mappings: list[Mapping]) -> bool:
    """Whether a program is still loading libraries, which may include an interpreter: loader mapped, no libc."""
    names = {PurePath(mapping.path).name for mapping in mappings}
    return any(map(_LOADER.match, names)) and not any(map(_LIBC.match, names))


def _candidates(mappings: list[Mapping], program: str) -> list[Mapping]:
    """The first mapping of each file that may hold an interpreter: its library, the program, then any with much code.

    The last are for a program that was started through its loader, and for what has an interpreter linked in.
    """
    first: dict[str, Mapping] = {}
    places: dict[str, int] = {}
    for mapping in mappings:
        if not mapping.inode or not mapping.path.startswith("/"):
            continue
        first.setdefault(mapping.path, mapping)
        if _LIBRARY.search(PurePath(mapping.path).name):
            places[mapping.path] = 0
        elif mapping.path == program:
            places[mapping.path] = 1
        elif "x" in mapping.permissions and mapping.end - mapping.start >= _MIN_CODE_BYTES:
            places.setdefault(mapping.path, 2)
    return [first[path] for path in sorted(places, key=lambda path: places[path])]


def _prove(
    candidate: InterpreterFile,
    image: _InterpreterImage,
    open_memory: Callable[[], ProcessMemory],
    thread_bias_in: Callable[[ProcessMemory], int],
) -> Interpreter | UnreadableInterpreter:
    file, addresses = candidate.file, image.addresses
    try:
        with open_memory() as memory:
            thread_bias = thread_bias_in(memory)
            version = _version(memory, file, image)
            debug_offsets = memory.read(addresses["_PyRuntime"], debug_offsets_bytes(version))
            layout = layout_of(version, debug_offsets)
            _check_members(memory, addresses["PyCode_Type"], layout)
            _check_thread(memory, addresses["_PyRuntime"], layout)
    except _StartingError as error:
        return UnreadableInterpreter(file=file, reason=str(error), is_starting=True)
    except KeyError as error:
        return UnreadableInterpreter(file=file, reason=f"it does not export {error.args[0]}")
    except (UnknownLayoutError, UnreadableMemoryError) as error:
        return UnreadableInterpreter(file=file, reason=str(error))
    except (OSError, UnreadableElfError) as error:
        return UnreadableInterpreter(file=file, reason=f"its memory cannot be read: {error}")
    return Interpreter(
        file=file,
        layout=layout,
        runtime=addresses["_PyRuntime"],
        code_type=addresses["PyCode_Type"],
        none=addresses["_Py_NoneStruct"],
        thread_bias=thread_bias,
        text=candidate.text,
        runtime_bytes=image.runtime_bytes,
        debug_offsets=debug_offsets,
    )


def _text(path: str, mappings: list[Mapping]) -> range:
    parts = [one for one in mappings if one.path == path and "x" in one.permissions]
    return range(min(one.start for one in parts), max(one.end for one in parts)) if parts else range(0)


def _thread_bias(
    libc: Sequence[tuple[int, InterpreterFile]], open_candidate: Callable[[int], ElfFile], memory: ProcessMemory
) -> int:
    """x86-64: the thread pointer is what pthread_self() returns. arm64: that lies below it, as far as libc says.

    Source: glibc, sysdeps/aarch64/nptl/tls.h; nptl_db/structs.def.
    """
    if platform.machine() == "x86_64":
        return 0
    for place, library in libc:
        with open_candidate(place) as elf:
            at, bias = elf.data([_PTHREAD_SIZE]).get(_PTHREAD_SIZE), elf.bias(library.start, library.offset)
        if at is not None and bias is not None:
            return -int.from_bytes(memory.read(bias + at, 4), "little")
    raise UnknownLayoutError("its C library does not say how large its threads are")


class _StartingError(Exception):
    """The interpreter has not made its first thread yet."""


def _version(memory: ProcessMemory, file: str, image: _InterpreterImage) -> tuple[int, int]:
    if "Py_Version" in image.addresses:
        number = int.from_bytes(memory.read(image.addresses["Py_Version"], 4), "little")
        return number >> 24, number >> 16 & 0xFF
    if image.tag:
        return int(image.tag[0]), int(image.tag[1:])
    named = _VERSION_IN_NAME.search(file)
    if named is None:
        raise UnknownLayoutError("neither the file nor its name says which version it is")
    return int(named.group(1)), int(named.group(2))


def _check_members(memory: ProcessMemory, code_type: int, layout: PythonLayout) -> None:
    """Checks that members of a code object, as Python code sees them, lie where they would be read."""
    at = memory.word(code_type + _MEMBERS_AT + layout.object_header_bytes)
    if not at:
        raise _StartingError("it is still starting")
    seen = set()
    for _ in range(_MAX_MEMBERS):
        name_at = memory.word(at)
        if not name_at:
            break
        ours = _MEMBERS.get(memory.text(name_at))
        if ours and ours in layout.offsets:
            offset = memory.word(at + _MEMBER_OFFSET_AT)
            if offset != layout.offsets[ours]:
                raise UnknownLayoutError(
                    f"its code objects are laid out differently ({ours} at {offset}): a debug or a modified build"
                )
            seen.add(ours)
        at += _MEMBER_BYTES
    if "code.filename" not in seen:
        raise UnknownLayoutError("its code objects cannot be recognized: a debug or a modified build")


def _check_thread(memory: ProcessMemory, runtime: int, layout: PythonLayout) -> None:
    """Checks that the first thread points back at its interpreter and at a thread of the C library."""
    offsets = layout.offsets
    interpreter = memory.word(runtime + offsets["runtime.interpreters"])
    thread = memory.word(interpreter + offsets["interpreter.threads"]) if interpreter else 0
    if not thread:
        raise _StartingError("it is still starting")
    if memory.word(thread + offsets["thread.interpreter"]) != interpreter:
        raise UnknownLayoutError("its threads do not point back at their interpreter")
