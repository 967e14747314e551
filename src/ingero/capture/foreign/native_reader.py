"""Reads the files that processes map, for unwinding and for symbols: in this process, or through the sandbox."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingero.capture.foreign.memory_files import SandboxedMemoryFiles
from ingero.capture.foreign.memory_reader import MemoryReader, SandboxedMemoryReader
from ingero.capture.foreign.shares import UserShares
from ingero.decode.native import names
from ingero.decode.native.deciding import Word
from ingero.decode.native.machines import MACHINES
from ingero.decode.native.symbols import Symbol, SymbolTable
from ingero.decode.native.unwinder import Ending, Frame, NativeStack, ThreadCopy, unwind
from ingero.discover.library_reader import HeldFile
from ingero.discover.mappings import Mapping
from ingero.discover.memory_files import MemoryFiles
from ingero.elf import ElfImage, FileSource, MemorySource, Segment, UnreadableImageError
from ingero.sandbox.messages import MAX_FILES
from ingero.sandbox.process import NoAnswerError, RefusedAnswerError, SandboxedProcess

if TYPE_CHECKING:
    from ingero.capture.stacks.address_space import ProcessAddressSpace

logger = logging.getLogger(__name__)

# A stack takes 3 ms and a large symbol table 0.3 s, where nothing else runs; other threads wait for nothing of this.
_CPU_S, _WALL_S, _OPEN_S = 1.0, 3.0, 0.5
_MAX_CACHED = 1 << 15  # names, 0.2 KB each
_MAX_GIVEN_UP = 1 << 12
_MAX_TRIES = 3  # of one process's stacks
_MAX_LOOKS = 3  # at the mappings, while one stack is unwound
_MAX_TEXT = 1 << 16


class NativeReader:
    """Unwinds and names functions in this process. memory: reads the memory of processes."""

    def __init__(self) -> None:
        self.memory = MemoryReader()

    def maps(self, process: Path) -> bytes:
        """What a process maps, as the kernel tells it.

        Raises:
            OSError: it has ended, may not be read, or does not answer.
        """
        return MemoryFiles(process.parent).maps(int(process.name))

    def open_mapped(self, process: Path, mappings: Sequence[Mapping]) -> list[ElfImage | str]:
        """The files behind these mappings, or why they cannot be read."""
        return [self._open(process, one) for one in mappings]

    def of_bytes(self, data: bytes) -> ElfImage:
        """An image from bytes that are no file (the vDSO).

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
    """An image whose file only the sandbox reads: the agent knows which parts are loaded from where, nothing else.

    number: unique. file: open; None: `data` is all of it.
    """

    _numbers = itertools.count(1)

    def __init__(self, file: HeldFile | None, data: bytes = b"") -> None:
        self.number, self.file, self.data = next(self._numbers), file, data
        self.source = MemorySource(b"")

    def take(self, loads: Any) -> None:
        """Takes the segments that the reader has found in it.

        Raises:
            ValueError, TypeError: that cannot be understood.
        """
        self.loads = self.segments = tuple(
            Segment(kind=1, offset=int(at), vaddr=int(vaddr), file_bytes=int(size), alignment=0, is_executable=True)
            for at, vaddr, size in loads[:64]
        )


class SandboxedNativeReader(NativeReader):
    """Unwinds and names functions in processes of the sandbox; may be used by several threads.

    count_drop: called with a counter's name for each thing that was given up.
    """

    def __init__(
        self,
        opener: SandboxedProcess,
        reader: SandboxedProcess,
        memory: SandboxedMemoryFiles,
        shares: UserShares,
        count_drop: Callable[[str], None],
    ) -> None:
        self._opener, self._reader, self._memory, self._shares, self._count_drop = (
            opener,
            reader,
            memory,
            shares,
            count_drop,
        )
        self.memory = SandboxedMemoryReader(memory, opener, reader, count_drop)
        self._names: dict[str, str] = {}
        self._given_up: dict[object, int] = {}  # files and processes: how often there was no answer

    def maps(self, process: Path) -> bytes:
        """See `NativeReader.maps`."""
        return self._memory.maps(int(process.name))

    def open_mapped(self, process: Path, mappings: Sequence[Mapping]) -> list[ElfImage | str]:
        """See `NativeReader.open_mapped`: many at once, and one by one where that fails."""
        found: list[ElfImage | str] = []
        for begin in range(0, len(mappings), MAX_FILES):
            some = mappings[begin : begin + MAX_FILES]
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
        for mapping in mappings:
            problem = "its user has used up the time there is"
            try:
                if self._shares.has_some(owner):
                    found += self._open_some(process, [mapping])
                    continue
            except NoAnswerError as error:
                self._shares.spend(owner, _OPEN_S)
                self._shares.hold(owner, error.killed)
                problem = error.reason
            except RefusedAnswerError as error:
                problem = error.reason
            self._count_drop("native_files_given_up")
            found.append(problem)
        return found

    def _open_some(self, process: Path, mappings: Sequence[Mapping]) -> list[ElfImage | str]:
        wanted = [[one.range_name, one.path, one.inode] for one in mappings]
        content = {"process": str(process), "mappings": wanted}
        answer = self._opener.ask("open_mapped", content, cpu_s=_CPU_S, wall_s=_OPEN_S)
        files = [HeldFile(one) for one in answer.files]
        problems = [str(one)[:_MAX_TEXT] if one else "" for one in answer.content["problems"]]
        if len(problems) != len(mappings) or problems.count("") != len(files):
            raise RefusedAnswerError("the reply is malformed")
        images = [MappedImage(file) for file in files]
        described = iter(self._describe_images(images))
        return [problem or next(described) for problem in problems]

    def _describe_images(self, images: Sequence[MappedImage]) -> list[ElfImage | str]:
        if not images:
            return []
        content = {"numbers": [one.number for one in images]}
        files = [one.file.descriptor for one in images if one.file]
        data = images[0].data
        answer = self._reader.ask("images", content, data=data, files=files, cpu_s=_CPU_S, wall_s=_WALL_S)
        return [_image_from(*one) for one in zip(images, answer.content["images"], strict=True)]

    def of_bytes(self, data: bytes) -> ElfImage:
        """See `NativeReader.of_bytes`."""
        try:
            image = self._describe_images([MappedImage(None, data)])[0]
        except (NoAnswerError, RefusedAnswerError) as error:
            raise UnreadableImageError(error.reason) from None
        if isinstance(image, str):
            raise UnreadableImageError(image)
        return image

    def unwind(self, copy: ThreadCopy, space: ProcessAddressSpace) -> NativeStack:
        """See `NativeReader.unwind`; of a process that costs too much there are no native stacks."""
        if self._given_up.get(space, 0) < _MAX_TRIES:
            try:
                return self._unwind(copy, space)
            except NoAnswerError as error:
                self._note(space)
                logger.warning("a native stack of process %d was abandoned: %s", space.pid, error.reason)
            except (RefusedAnswerError, ValueError, TypeError, KeyError) as error:
                logger.info("a native stack of process %d cannot be unwound: %s", space.pid, error)
        self._count_drop("native_stacks_given_up")
        return NativeStack((), Ending.DAMAGED, "unwinding it takes too long", ())

    def _unwind(self, copy: ThreadCopy, space: ProcessAddressSpace) -> NativeStack:
        with self._reader.lock:
            for _ in range(_MAX_LOOKS):
                answer = self._ask_to_unwind(copy, space)
                unknown = [address for address in answer["unknown"] if isinstance(address, int)]
                if not space.finds_more(unknown):
                    break
        return _stack_from(answer, space)

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
                content["ranges"] = space.ranges_content()
            else:
                self._describe_again([one for one in space.images() if isinstance(one, MappedImage)], set(wants))
        raise RefusedAnswerError("it keeps asking for more")

    def _describe_again(self, images: Sequence[MappedImage], numbers: set[int]) -> None:
        known = {image.number: image for image in images if image.number in numbers}
        files = [image for image in known.values() if image.file]
        for begin in range(0, len(files), MAX_FILES):
            self._describe_images(files[begin : begin + MAX_FILES])
        for image in known.values():
            if not image.file:
                self._describe_images([image])

    def table(self, image: ElfImage) -> SymbolTable:
        """See `NativeReader.table`."""
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
                    self._describe_again([image], {image.number})
                    answer = self._reader.ask("symbols", content, cpu_s=_CPU_S, wall_s=_WALL_S).content
            found = answer["symbols"][0]
            return Symbol(str(found[0])[:_MAX_TEXT], int(found[1])) if found else None
        except (NoAnswerError, RefusedAnswerError, LookupError, TypeError, ValueError) as error:
            self._note(image.number)
            self._count_drop("native_files_given_up")
            logger.warning("functions of a file have no names: %s", error)
            return None

    def demangle(self, name: str) -> str:
        """See `NativeReader.demangle`; a name that becomes too long, or takes too long, stays as it is."""
        if not names.is_mangled(name):
            return names.demangle(name)
        known = self._names.get(name)
        if known is None:
            known = self._ask_demangled(name)
            if len(self._names) >= _MAX_CACHED:
                del self._names[next(iter(self._names))]
            self._names[name] = known
        return known

    def _ask_demangled(self, name: str) -> str:
        try:
            answer = self._reader.ask("demangle", {"names": [name]}, cpu_s=_CPU_S, wall_s=_WALL_S)
            return str(answer.content["names"][0])[:_MAX_TEXT]
        except (NoAnswerError, RefusedAnswerError, LookupError, TypeError) as error:
            self._count_drop("native_files_given_up")
            logger.warning("a name stays mangled: %s", error)
            return name

    def _note(self, what: object) -> None:
        if len(self._given_up) >= _MAX_GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._given_up[what] = self._given_up.get(what, 0) + 1


class _SandboxedTable(SymbolTable):
    """A symbol table in the sandbox; each address is asked for once."""

    def __init__(self, reader: SandboxedNativeReader, image: MappedImage) -> None:
        self._asks, self._mapped = reader, image
        self._known: dict[int, Symbol | None] = {}

    def at(self, vaddr: int) -> Symbol | None:
        """See `SymbolTable.at`."""
        if vaddr not in self._known:
            found = self._asks.symbol(self._mapped, vaddr)
            if len(self._known) >= _MAX_CACHED:
                del self._known[next(iter(self._known))]
            self._known[vaddr] = found
        return self._known[vaddr]


def _image_from(image: MappedImage, content: Any) -> ElfImage | str:
    try:
        if "why" in content:
            return str(content["why"])[:_MAX_TEXT]
        image.take(content["loads"])
    except (LookupError, TypeError, ValueError):
        raise RefusedAnswerError("the reply is malformed") from None
    return image


def _stack_from(content: dict[str, Any], space: ProcessAddressSpace) -> NativeStack:
    frames = tuple(
        Frame(int(address), space.module_of(int(index)), int(lookup), decided_by=int(decided))
        for address, index, lookup, decided in content["frames"]
    )
    words = tuple(
        None if one is None else Word(None if one[0] is None else int(one[0]), is_relative=bool(one[1]))
        for one in content["words"]
    )
    return NativeStack(frames, Ending(content["ending"]), str(content["detail"])[:_MAX_TEXT], words)
