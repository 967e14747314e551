"""Address spaces of processes for unwinding; each file is opened once for all processes that map it."""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ingero.capture.foreign.native_reader import MappedImage, NativeReader
from ingero.decode.native.unwinder import Module
from ingero.discover.mappings import Mapping, parse_maps
from ingero.discover.processes import PROC
from ingero.elf import ElfImage, UnreadableImageError

logger = logging.getLogger(__name__)

_TRAMPOLINE = "[uprobes]"
_VDSO = "[vdso]"


class MappedImages:
    """ELF files by (device, inode), shared by all processes. A file that cannot be read is asked for once.

    They are open, which keeps deleted files on the disk and the mounts of ended containers alive: see `let_go`.
    """

    def __init__(self, reader: NativeReader | None = None) -> None:
        self.reader = reader or NativeReader()
        self._images: dict[tuple[int, int], ElfImage | None] = {}
        self.unreadable: dict[str, str] = {}

    def of_mapping(self, pid: int, mapping: Mapping, proc: Path = PROC) -> ElfImage | None:
        """The file behind a mapping, even if it is deleted or in another root."""
        self.prepare(pid, [mapping], proc)
        return self._images[mapping.device, mapping.inode]

    def prepare(self, pid: int, mappings: Iterable[Mapping], proc: Path = PROC) -> None:
        """Opens the files of these mappings that are not open yet."""
        new = {(one.device, one.inode): one for one in mappings if (one.device, one.inode) not in self._images}
        found = self.reader.open_mapped(proc / str(pid), list(new.values())) if new else []
        for (key, mapping), image in zip(new.items(), found, strict=True):
            self._images[key] = self._usable(mapping, image)

    def let_go(self, spaces: Iterable[ProcessAddressSpace]) -> frozenset[int]:
        """Forgets the files that none of these maps; returns the `id` of each image still in use.

        A file is closed when nothing else refers to its image.
        """
        used = frozenset(id(image) for space in spaces for image in space.images())
        self._images = {key: image for key, image in self._images.items() if image and id(image) in used}
        self.unreadable.clear()
        return used

    def _usable(self, mapping: Mapping, image: ElfImage | str) -> ElfImage | None:
        if isinstance(image, ElfImage):
            return image
        self.unreadable[mapping.path] = image
        logger.info("%s cannot be unwound through: %s", mapping.path, image)
        return None


_versions = itertools.count(1)


def _has_file(mapping: Mapping) -> bool:
    return bool(mapping.inode) and mapping.path not in (_TRAMPOLINE, _VDSO)


def _module_content(module: Module | None) -> list[Any] | None:
    if module is None:
        return None
    number = module.image.number if isinstance(module.image, MappedImage) else 0
    return [number, module.bias, module.name, module.is_trampoline]


@dataclass(frozen=True, slots=True)
class _MappedRange:
    start: int
    end: int
    module: Module | None


class ProcessAddressSpace:
    """The executable mappings of one process, read again when an address is asked for that lies in none of them.

    It is kept after the process has ended, for the records that are still on their way.
    """

    def __init__(self, pid: int, images: MappedImages, proc: Path = PROC) -> None:
        self.pid, self._images, self._proc = pid, images, proc
        self.version = next(_versions)  # of its ranges
        self._starts: list[int] = []
        self._ranges: list[_MappedRange] = []
        self._modules: dict[tuple[int, int, str], Module] = {}
        self._unknown: set[int] = set()

    def module_at(self, address: int) -> Module | None:
        """See `AddressSpace.module_at`."""
        found = self._find(address)
        if found is None and address not in self._unknown:
            self._read()
            found = self._find(address)
            if found is None:
                self._unknown.add(address)
        return found.module if found else None

    def images(self) -> Iterator[ElfImage]:
        """The images of all files mapped so far; some more than once."""
        modules = [*self._modules.values(), *(one.module for one in self._ranges)]
        return (module.image for module in modules if module and module.image)

    def read_mappings(self) -> None:
        """Reads the mappings now, so that they are known once the process has ended."""
        self._read()

    def inherit(self, parent: ProcessAddressSpace) -> None:
        """Copies the mappings of the parent after fork."""
        self._starts, self._ranges = parent._starts, parent._ranges  # never changed in place
        self.version = parent.version

    def forget(self) -> None:
        """Forgets the mappings, after exec or when a library may have been unloaded."""
        self._starts, self._ranges = [], []
        self.version = next(_versions)
        self._unknown.clear()

    def finds_more(self, unknown: Iterable[int]) -> bool:
        """Reads the mappings again for unknown addresses; returns whether they changed."""
        before = self.version
        for address in unknown:
            self.module_at(address)
        return self.version != before

    def module_of(self, index: int) -> Module | None:
        """The module in one of the ranges of `ranges_content`."""
        return self._ranges[index].module if 0 <= index < len(self._ranges) else None

    def ranges_content(self) -> list[Any]:
        """The ranges as content of a question to `capture/foreign/native_tasks.py`."""
        return [[one.start, one.end, _module_content(one.module)] for one in self._ranges]

    def _find(self, address: int) -> _MappedRange | None:
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._ranges[index].end:
            return self._ranges[index]
        return None

    def _read(self) -> None:
        try:
            raw = self._images.reader.maps(self._proc / str(self.pid))
        except OSError:  # it does not answer, or has ended: what was known stays
            return
        mappings = [one for one in parse_maps(raw) if "x" in one.permissions]
        self._images.prepare(self.pid, (one for one in mappings if _has_file(one)), self._proc)
        ranges = [_MappedRange(one.start, one.end, self._module(one)) for one in mappings]
        if ranges and ranges != self._ranges:
            self.version = next(_versions)
            self._ranges = ranges
            self._starts = [one.start for one in ranges]

    def _module(self, mapping: Mapping) -> Module | None:
        key = (mapping.start, mapping.inode, mapping.path)
        if key not in self._modules:
            module = self._new_module(mapping)
            if module is None:
                return None
            self._modules[key] = module
        return self._modules[key]

    def _new_module(self, mapping: Mapping) -> Module | None:
        if mapping.path == _TRAMPOLINE:
            return Module(_TRAMPOLINE, mapping.start, None, is_trampoline=True)
        if mapping.path == _VDSO:
            image = self._vdso(mapping)
        elif _has_file(mapping):
            image = self._images.of_mapping(self.pid, mapping, self._proc)
        else:
            return None
        bias = image.bias(mapping.start, mapping.offset) if image else None
        if bias is None:  # its offsets in the file still name a place
            return Module(PurePath(mapping.path).name, mapping.start - mapping.offset, None)
        return Module(PurePath(mapping.path).name, bias, image)

    def _vdso(self, mapping: Mapping) -> ElfImage | None:
        try:
            reader = self._images.reader
            return reader.of_bytes(reader.memory.mapped(self.pid, mapping.start, mapping.end - mapping.start))
        except (OSError, UnreadableImageError) as error:
            logger.info("the vDSO of process %d cannot be read: %s", self.pid, error)
            return None
