"""The C program that copies its own stack (unwind_target.c), and what it wrote."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ingero.decode.native.symbols import SymbolTable
from ingero.decode.native.unwinder import Frame, Module, NativeStack, ThreadCopy, unwind
from ingero.discover.mappings import Mapping, parse_maps
from ingero.elf import ElfImage, FileSource

_COPY = struct.Struct("<32s33QQQQ1024Q")
_SOURCE = Path(__file__).with_name("unwind_target.c")


@dataclass(frozen=True)
class CopiedStack:
    """A copied stack. expected: the return addresses that libgcc finds, without the function that made the copy."""

    thread: ThreadCopy
    expected: list[int]


class FilesOnDisk:
    """The address space of a program that has ended: its mapped files are still there."""

    def __init__(self, maps: bytes) -> None:
        self._maps = [one for one in parse_maps(maps) if "x" in one.permissions]
        self._modules: dict[int, Module | None] = {}

    def module_at(self, address: int) -> Module | None:
        """The module at an address, like AddressSpace.module_at."""
        for mapping in self._maps:
            if mapping.start <= address < mapping.end:
                if mapping.start not in self._modules:
                    self._modules[mapping.start] = _module(mapping)
                return self._modules[mapping.start]
        return None


def _module(mapping: Mapping) -> Module | None:
    if not mapping.path.startswith("/"):
        return None
    image = ElfImage(FileSource(Path(mapping.path)))
    bias = image.bias(mapping.start, mapping.offset)
    return Module(mapping.path, bias, image) if bias is not None else None


@dataclass(frozen=True)
class Program:
    """A program that has written copies of its stacks."""

    copies: dict[str, CopiedStack]
    space: FilesOnDisk

    def unwind(self, name: str) -> NativeStack:
        """The stack of one copy."""
        return unwind(self.copies[name].thread, self.space)


def read_copies(raw: bytes, machine: str, registers: int) -> dict[str, CopiedStack]:
    """The copies in a file that the program has written."""
    found, at = {}, 0
    while at < len(raw):
        fields = _COPY.unpack_from(raw, at)
        at += _COPY.size
        name = fields[0].rstrip(b"\0").decode()
        stack_vaddr, stack_bytes, frames = fields[34:37]
        thread = ThreadCopy(
            machine=machine,
            registers=fields[1 : 1 + registers],
            is_pc_exact=False,
            stack_vaddr=stack_vaddr,
            stack=raw[at : at + stack_bytes],
            probed={},
        )
        found[name] = CopiedStack(thread, [address for address in fields[38 : 37 + frames] if address])
        at += stack_bytes
    return found


def run_target(folder: Path, flags: str) -> tuple[Path, Program]:
    """Builds the C program in a folder and runs it."""
    compiler = shutil.which("gcc")
    assert compiler, "gcc is needed: apt-get install gcc"
    target = folder / "target"
    subprocess.run([compiler, *flags.split(), "-o", target, _SOURCE], check=True)
    subprocess.run([target, folder / "copies", folder / "maps"], check=True)
    copies = read_copies((folder / "copies").read_bytes(), "x86_64", 17)
    return target, Program(copies, FilesOnDisk((folder / "maps").read_bytes()))


def function_names(stack: NativeStack) -> list[str | None]:
    """The symbol of each frame, None where no symbol covers it."""
    return [_function_name(frame) for frame in stack.frames]


def _function_name(frame: Frame) -> str | None:
    assert frame.module
    assert frame.module.image
    symbol = SymbolTable(frame.module.image).at(frame.lookup)
    return symbol.name if symbol else None
