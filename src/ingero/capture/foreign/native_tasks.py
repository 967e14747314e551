"""Tasks of a sandboxed reader on the files that processes map: unwinding stacks, naming functions."""

from __future__ import annotations

import bisect
import platform
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from ingero.decode.native.machines import MACHINES
from ingero.decode.native.names import demangle
from ingero.decode.native.symbols import SymbolTable
from ingero.decode.native.unwinder import Frame, Module, NativeStack, ThreadCopy, unwind
from ingero.elf import ElfImage, FileSource, MemorySource, UnreadableImageError
from ingero.sandbox.messages import Message
from ingero.sandbox.nursery import Task

_MACHINE = platform.machine()
_MAX_IMAGES = 2048  # each is an open file; what is forgotten is asked for again
_MAX_TABLES_BYTES = 96 << 20  # of symbols, 24 bytes a function
_MAX_SPACES = 512
_MAX_NAME = 1 << 16


def tasks() -> Mapping[str, Task]:
    """The tasks by name."""
    reader = _Reader()
    return {"images": reader.images, "unwind": reader.unwind, "symbols": reader.symbols, "demangle": _demangle}


class _Reader:
    """Knows files and address spaces by the numbers that the agent has given them, until there are too many."""

    def __init__(self) -> None:
        self._images: OrderedDict[int, ElfImage] = OrderedDict()
        self._tables: OrderedDict[int, SymbolTable] = OrderedDict()
        self._spaces: OrderedDict[int, _ReceivedAddressSpace] = OrderedDict()

    def images(self, question: Message) -> Message:
        """Reads the headers of files, or of bytes: what is loaded from where, or why that is not known."""
        numbers = question.content["numbers"]
        if question.data:
            return Message({"images": [self._image(numbers[0], MemorySource(question.data))]})
        files = zip(numbers, question.files, strict=True)
        return Message({"images": [self._image(number, FileSource(_NOWHERE, file)) for number, file in files]})

    def _image(self, number: int, source: FileSource | MemorySource) -> dict[str, Any]:
        try:
            image = ElfImage(source)
        except UnreadableImageError as error:
            return {"why": str(error)}
        if image.machine not in MACHINES:
            return {"why": f"it is for {image.machine}, which is not supported"}
        self._images[number] = image
        while len(self._images) > _MAX_IMAGES:
            self._images.popitem(last=False)
        return {"loads": [[one.offset, one.vaddr, one.file_bytes] for one in image.loads]}

    def unwind(self, question: Message) -> Message:
        """Walks a copied stack. The space comes with the question only where it is not known yet."""
        content = question.content
        number = content["space"]
        if "ranges" in content:
            self._spaces[number] = _ReceivedAddressSpace(content["ranges"], self._images)
            while len(self._spaces) > _MAX_SPACES:
                self._spaces.popitem(last=False)
        space = self._spaces.get(number)
        if space is None:
            return Message({"wants": "space"})
        self._spaces.move_to_end(number)
        missing = space.missing(self._images)
        if missing:
            return Message({"wants": missing})
        space.unknown.clear()
        copy = ThreadCopy(
            machine=_MACHINE,
            registers=content["registers"],
            is_pc_exact=content["is_pc_exact"],
            stack_vaddr=content["stack_vaddr"],
            stack=question.data,
            probed=dict(content["probed"]),
        )
        return Message(_stack_content(unwind(copy, space), space))

    def symbols(self, question: Message) -> Message:
        """The name and offset of each address of a file; null where no function is known to lie."""
        number = question.content["image"]
        image = self._images.get(number)
        if image is None:
            return Message({"wants": [number]})
        table = self._tables.pop(number, None) or SymbolTable(image)
        self._tables[number] = table
        found = [table.at(vaddr) for vaddr in question.content["addresses"]]
        while sum(one.size_bytes for one in self._tables.values()) > _MAX_TABLES_BYTES and len(self._tables) > 1:
            self._tables.popitem(last=False)
        return Message({"symbols": [[one.name[:_MAX_NAME], one.offset] if one else None for one in found]})


_NOWHERE: Any = "an open file"


class _ReceivedAddressSpace:
    """The address space of a process as the agent described it: by address what is mapped there.

    ranges: start, end, number of the image (0: none), bias, name, whether the kernel's trampoline; null: of no file.
    """

    def __init__(self, ranges: list[Any], images: Mapping[int, ElfImage]) -> None:
        self._starts = [one[0] for one in ranges]
        self._ranges = ranges
        self._modules: dict[int, Module] = {}
        self._needed = {one[2][0] for one in ranges if one[2] and one[2][0]}
        self._images = images
        self.unknown: list[int] = []

    def missing(self, images: Mapping[int, ElfImage]) -> list[int]:
        """Numbers of images that this reader no longer holds."""
        return [number for number in self._needed if number not in images]

    def module_at(self, address: int) -> Module | None:
        """See `AddressSpace.module_at`."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._ranges[index][1]:
            self.unknown.append(address)
            return None
        if self._ranges[index][2] is None:
            return None
        if index not in self._modules:
            number, bias, name, is_trampoline = self._ranges[index][2]
            self._modules[index] = Module(name, bias, self._images.get(number), is_trampoline=is_trampoline)
        return self._modules[index]

    def index_of(self, frame: Frame) -> int:
        """Which range a frame lies in."""
        return bisect.bisect_right(self._starts, frame.address) - 1


def _stack_content(stack: NativeStack, space: _ReceivedAddressSpace) -> dict[str, Any]:
    return {
        "frames": [[one.address, space.index_of(one), one.lookup, one.decided_by] for one in stack.frames],
        "ending": stack.ending.value,
        "detail": stack.detail[:_MAX_NAME],
        "words": [[one.address, one.is_relative] if one else None for one in stack.words],
        "unknown": space.unknown,
    }


def _demangle(question: Message) -> Message:
    return Message({"names": [demangle(name)[:_MAX_NAME] for name in question.content["names"]]})
