"""Reads the files that processes map, for unwinding and for names: in this process, or in one of the sandbox."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingero.capture.foreign.memory_files import SandboxedMemoryFiles
from ingero.capture.foreign.memory_reader import MemoryReader, SandboxedMemoryReader
from ingero.capture.foreign.shares import Shares
from ingero.decode.native import names
from ingero.decode.native.deciding import Word
from ingero.decode.native.machines import MACHINES
from ingero.decode.native.symbols import Symbol, SymbolTable
from ingero.decode.native.unwinder import Ending, Frame, NativeStack, ThreadCopy, unwind
from ingero.discover.library_reader import Held
from ingero.discover.mappings import Mapping
from ingero.discover.memory_files import MemoryFiles
from ingero.elf import ElfImage, FileSource, MemorySource, Segment, UnreadableImageError
from ingero.sandbox.messages import MOST_FILES
from ingero.sandbox.process import NoAnswerError, RefusedAnswerError, SandboxedProcess

if TYPE_CHECKING:
    from ingero.capture.stacks.address_space import ProcessAddressSpace

logger = logging.getLogger(__name__)

# A stack takes 3 ms and a large symbol table 0.3 s, where nothing else runs; other threads wait for nothing of this.
_CPU_S, _WALL_S, _OPEN_S = 1.0, 3.0, 0.5
_MOST_CACHED = 1 << 15  # names, 0.2 KB each
_MOST_GIVEN_UP = 1 << 12
_MOST_TRIES = 3  # of one process's stacks
_MOST_LOOKS = 3  # at the mappings, while one stack is unwound
_MOST_TEXT = 1 << 16


class NativeReader:
    """In this process. memory: reads what lies in the memory of processes."""

    def __init__(self) -> None:
        self.memory = MemoryReader()

    def maps(self, process: Path) -> bytes:
        """What a process maps, as the kernel tells it.

        Raises:
            OSError: it has ended, may not be looked at, or does not answer.
        """
        return MemoryFiles(process.parent).maps(int(process.name))

    def open_mapped(self, process: Path, mappings: Sequence[Mapping]) -> list[ElfImage | str]:
        """The files behind these mappings, or why they cannot be read."""
        return [self._open(process, one) for one in mappings]

    def of_bytes(self, data: bytes) -> ElfImage:
        """An image that is no file.

        Raises:
            UnreadableImageError: it is none.
        """
        return ElfImage(MemorySource(data))

    def unwind(self, copy: ThreadCopy, space: ProcessAddressSpace) -> NativeStack:
        """As there."""
        return unwind(copy, space)

    def table(self, image: ElfImage) -> SymbolTable:
        """The functions of a file."""
        return SymbolTable(image)

    def demangle(self, name: str) -> str:
        """As there."""
        return names.demangle(name)

    @staticmethod
    def _open(process: Path, mapping: Mapping) -> ElfImage | str:
        try:
            image = ElfImage(_source(process, mapping))
            if image.machine not in MACHINES:
                return f"it is for {image.machine}, which is not supported"
            return image
        except (OSError, UnreadableImageError) as error:
            return str(error)


def _source(process: Path, mapping: Mapping) -> FileSource:
    """The mapped file; by its path only where its mapping may not be opened (it takes CAP_CHECKPOINT_RESTORE)."""
    try:
        return FileSource(process / "map_files" / mapping.range_name)
    except PermissionError:
        path = process / "root" / mapping.path.lstrip("/")
        if path.stat().st_ino != mapping.inode:
            raise
        return FileSource(path)


class MappedImage(ElfImage):
    """What the agent knows of an image that a process of the sandbox reads: what is loaded from where, nothing else.

    number: the same for nobody else. file: open; None: `data` is all of it.
    """

    _numbers = itertools.count(1)

    def __init__(self, file: Held | None, data: bytes = b"") -> None:
        self.number, self.file, self.data = next(self._numbers), file, data
        self.source = MemorySource(b"")

    def take(self, loads: Any) -> None:
        """What the reader says of it.

        Raises:
            ValueError, TypeError: that cannot be understood.
        """
        self.loads = self.segments = tuple(
            Segment(kind=1, offset=int(at), vaddr=int(vaddr), file_bytes=int(size), alignment=0, is_executable=True)
            for at, vaddr, size in loads[:64]
        )


class SandboxedNativeReader(NativeReader):
    """In processes of the sandbox; may be used by several threads.

    lost: called with a counter's name for each thing that was given up.
    """

    def __init__(
        self,
        opener: SandboxedProcess,
        reader: SandboxedProcess,
        memory: SandboxedMemoryFiles,
        shares: Shares,
        lost: Callable[[str], None],
    ) -> None:
        self._opener, self._reader, self._memory, self._shares, self._lost = opener, reader, memory, shares, lost
        self.memory = SandboxedMemoryReader(memory, opener, reader, lost)
        self._names: dict[str, str] = {}
        self._given_up: dict[object, int] = {}  # files and processes: how often there was no answer

    def maps(self, process: Path) -> bytes:
        """As there."""
        return self._memory.maps(int(process.name))

    def open_mapped(self, process: Path, mappings: Sequence[Mapping]) -> list[ElfImage | str]:
        """As there: many at once, and one by one where that fails."""
        found: list[ElfImage | str] = []
        for begin in range(0, len(mappings), MOST_FILES):
            some = mappings[begin : begin + MOST_FILES]
            try:
                found += self._open_some(process, some)
            except (NoAnswerError, RefusedAnswerError) as error:
                found += self._open_each(process, some, error)
        return found

    def _open_each(
        self, process: Path, mappings: Sequence[Mapping], before: NoAnswerError | RefusedAnswerError
    ) -> list[ElfImage | str]:
        """One by one, until its user has kept others waiting for too long: the stacks of all wait meanwhile.

        before: what became of them all at once.
        """
        owner = self._shares.owner(int(process.name))
        if isinstance(before, NoAnswerError):
            self._shares.hold(owner, before.killed)
        found: list[ElfImage | str] = []
        for one in mappings:
            problem = "its user has used up the time there is"
            try:
                if self._shares.has_some(owner):
                    found += self._open_some(process, [one])
                    continue
            except NoAnswerError as error:
                self._shares.spend(owner, _OPEN_S)
                self._shares.hold(owner, error.killed)
                problem = error.reason
            except RefusedAnswerError as error:
                problem = error.reason
            self._lost("native_files_given_up")
            found.append(problem)
        return found

    def _open_some(self, process: Path, mappings: Sequence[Mapping]) -> list[ElfImage | str]:
        wanted = [[one.range_name, one.path, one.inode] for one in mappings]
        content = {"process": str(process), "mappings": wanted}
        answer = self._opener.ask("open_mapped", content, cpu_s=_CPU_S, wall_s=_OPEN_S)
        files = [Held(one) for one in answer.files]
        problems = [str(one)[:_MOST_TEXT] if one else "" for one in answer.content["problems"]]
        if len(problems) != len(mappings) or problems.count("") != len(files):
            raise RefusedAnswerError("the reply is malformed")
        images = [MappedImage(file) for file in files]
        told = iter(self._tell(images))
        return [problem or next(told) for problem in problems]

    def _tell(self, images: Sequence[MappedImage]) -> list[ElfImage | str]:
        if not images:
            return []
        content = {"numbers": [one.number for one in images]}
        files = [one.file.descriptor for one in images if one.file]
        data = images[0].data
        answer = self._reader.ask("images", content, data=data, files=files, cpu_s=_CPU_S, wall_s=_WALL_S)
        return [_taken_image(*one) for one in zip(images, answer.content["images"], strict=True)]

    def of_bytes(self, data: bytes) -> ElfImage:
        """As there."""
        try:
            image = self._tell([MappedImage(None, data)])[0]
        except (NoAnswerError, RefusedAnswerError) as error:
            raise UnreadableImageError(error.reason) from None
        if isinstance(image, str):
            raise UnreadableImageError(image)
        return image

    def unwind(self, copy: ThreadCopy, space: ProcessAddressSpace) -> NativeStack:
        """As there; of a process that costs too much there are no native stacks."""
        if self._given_up.get(space, 0) < _MOST_TRIES:
            try:
                return self._unwound(copy, space)
            except NoAnswerError as error:
                self._note(space)
                logger.warning("a native stack of process %d was abandoned: %s", space.pid, error.reason)
            except (RefusedAnswerError, ValueError, TypeError, KeyError) as error:
                logger.info("a native stack of process %d cannot be unwound: %s", space.pid, error)
        self._lost("native_stacks_given_up")
        return NativeStack((), Ending.DAMAGED, "unwinding it takes too long", ())

    def _unwound(self, copy: ThreadCopy, space: ProcessAddressSpace) -> NativeStack:
        with self._reader.lock:
            for _ in range(_MOST_LOOKS):
                answer = self._ask_to_unwind(copy, space)
                unknown = [address for address in answer["unknown"] if isinstance(address, int)]
                if not space.finds_more(unknown):
                    break
        return _taken_stack(answer, space)

    def _ask_to_unwind(self, copy: ThreadCopy, space: ProcessAddressSpace) -> dict[str, Any]:
        content: dict[str, Any] = {
            "space": space.version,
            "registers": list(copy.registers),
            "is_pc_exact": copy.is_pc_exact,
            "stack_vaddr": copy.stack_vaddr,
            "probed": list(copy.probed.items()),
        }
        for _ in range(4):  # it may have been replaced: the space, then its images
            answer = self._reader.ask("unwind", content, data=copy.stack, cpu_s=_CPU_S, wall_s=_WALL_S).content
            wants = answer.get("wants")
            if wants is None:
                return answer
            if wants == "space":
                content["ranges"] = space.told()
            else:
                self._tell_again([one for one in space.images() if isinstance(one, MappedImage)], set(wants))
        raise RefusedAnswerError("it keeps asking for more")

    def _tell_again(self, images: Sequence[MappedImage], numbers: set[int]) -> None:
        known = {one.number: one for one in images if one.number in numbers}
        files = [one for one in known.values() if one.file]
        for begin in range(0, len(files), MOST_FILES):
            self._tell(files[begin : begin + MOST_FILES])
        for one in known.values():
            if not one.file:
                self._tell([one])

    def table(self, image: ElfImage) -> SymbolTable:
        """As there."""
        assert isinstance(image, MappedImage)
        return _SandboxedTable(self, image)

    def symbol(self, image: MappedImage, vaddr: int) -> Symbol | None:
        """The function at an address of a file; None where no symbol says so, or the file costs more than it may."""
        if image.number in self._given_up:
            return None
        content = {"image": image.number, "addresses": [vaddr]}
        try:
            with self._reader.lock:
                answer = self._reader.ask("symbols", content, cpu_s=_CPU_S, wall_s=_WALL_S).content
                if "wants" in answer:
                    self._tell_again([image], {image.number})
                    answer = self._reader.ask("symbols", content, cpu_s=_CPU_S, wall_s=_WALL_S).content
            found = answer["symbols"][0]
            return Symbol(str(found[0])[:_MOST_TEXT], int(found[1])) if found else None
        except (NoAnswerError, RefusedAnswerError, LookupError, TypeError, ValueError) as error:
            self._note(image.number)
            self._lost("native_files_given_up")
            logger.warning("functions of a file have no names: %s", error)
            return None

    def demangle(self, name: str) -> str:
        """As there; a name that becomes too long, or takes too long, stays as it is."""
        if not names.is_mangled(name):
            return names.demangle(name)
        known = self._names.get(name)
        if known is None:
            known = self._demangled(name)
            if len(self._names) >= _MOST_CACHED:
                del self._names[next(iter(self._names))]
            self._names[name] = known
        return known

    def _demangled(self, name: str) -> str:
        try:
            answer = self._reader.ask("demangle", {"names": [name]}, cpu_s=_CPU_S, wall_s=_WALL_S)
            return str(answer.content["names"][0])[:_MOST_TEXT]
        except (NoAnswerError, RefusedAnswerError, LookupError, TypeError) as error:
            self._lost("native_files_given_up")
            logger.warning("a name stays mangled: %s", error)
            return name

    def _note(self, what: object) -> None:
        if len(self._given_up) >= _MOST_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[what] = self._given_up.get(what, 0) + 1


class _SandboxedTable(SymbolTable):
    """Asks once for each address."""

    def __init__(self, reader: SandboxedNativeReader, image: MappedImage) -> None:
        self._asks, self._mapped = reader, image
        self._known: dict[int, Symbol | None] = {}

    def at(self, vaddr: int) -> Symbol | None:
        """As there."""
        if vaddr not in self._known:
            found = self._asks.symbol(self._mapped, vaddr)
            if len(self._known) >= _MOST_CACHED:
                del self._known[next(iter(self._known))]
            self._known[vaddr] = found
        return self._known[vaddr]


def _taken_image(image: MappedImage, told: Any) -> ElfImage | str:
    try:
        if "why" in told:
            return str(told["why"])[:_MOST_TEXT]
        image.take(told["loads"])
    except (LookupError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None
    return image


def _taken_stack(told: dict[str, Any], space: ProcessAddressSpace) -> NativeStack:
    frames = tuple(
        Frame(int(address), space.module_of(int(index)), int(lookup), decided_by=int(decided))
        for address, index, lookup, decided in told["frames"]
    )
    words = tuple(
        None if one is None else Word(None if one[0] is None else int(one[0]), is_relative=bool(one[1]))
        for one in told["words"]
    )
    return NativeStack(frames, Ending(told["ending"]), str(told["detail"])[:_MOST_TEXT], words)
