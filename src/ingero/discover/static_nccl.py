"""NCCL linked into another library or into the program itself: found by its symbols, named where it has none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ingero.discover.elf import ElfFile
from ingero.discover.library_files import LibraryFile, describe
from ingero.discover.mappings import Mapping, parse_maps
from ingero.discover.symbol_table import function_offsets, section_contains
from ingero.errors import IngeroError
from ingero.ops import Library

# NCCL's own code is over 1 MiB: a file that maps less of it executable does not hold it
_LEAST_CODE_BYTES = 1 << 20
# who is known to be linked with it; the others are only asked for what they export, which takes a few reads
_KNOWN_HOSTS = re.compile(r"torch_cuda|tensorflow|paddle|mxnet|xla|nccl")
_NCCL_ITSELF = re.compile(rb"/libnccl(?:-[0-9a-f]{6,})?\.so(?:\.\d+)*(?: \(deleted\))?$", re.MULTILINE)  # no plugin
_WITNESS = "ncclCommInitRank"
_NAME_OF_NCCL = b"libnccl.so"
_TEXT_OF_NCCL = b"NCCL_SOCKET_IFNAME"  # a variable that every version reads


class SymbolsMissingError(IngeroError):
    """NCCL is linked into a file that does not say where."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"NCCL is linked into {path} statically and its symbols were stripped: its calls are not seen",
            hint="use a build that links libnccl.so.2, or one that is not stripped (nm FILE | grep ncclAllReduce)",
        )


def candidates(raw_maps: bytes) -> Iterator[Mapping]:
    """The mapped files of a CUDA process that may hold NCCL, if it maps no libnccl; one mapping per file."""
    if b"/libcuda" not in raw_maps or _NCCL_ITSELF.search(raw_maps):
        return
    for mapped in parse_maps(raw_maps):
        is_code = "x" in mapped.permissions and mapped.path.startswith("/") and "/libcu" not in mapped.path
        if is_code and mapped.end - mapped.start >= _LEAST_CODE_BYTES:
            yield mapped


def identify_static_nccl(path: Path, name: str, descriptor: int | None = None) -> LibraryFile | None:
    """The file as a copy of NCCL, or None if it holds none.

    name: the file name, where `path` is only a way to reach it. descriptor: of the file, where it is open already.

    Raises:
        OSError: the file is gone or may not be read.
        UnreadableElfError: it is damaged.
        SymbolsMissingError: it holds NCCL and does not say where.
    """
    with ElfFile(path, descriptor) as elf:
        is_known_host = bool(_KNOWN_HOSTS.search(name))
        is_program = not elf.soname and ".so" not in name
        is_exported = bool(elf.functions([_WITNESS]))
        if is_exported and _only_loads_nccl(elf):
            return None
        if not is_exported:
            if not (is_known_host or is_program) or any("libnccl" in needed for needed in elf.needed):
                return None
            if not function_offsets(elf, [_WITNESS]):
                if section_contains(elf, ".rodata", _TEXT_OF_NCCL):
                    raise SymbolsMissingError(path)
                return None
        return describe(elf, Library.NCCL)


def _only_loads_nccl(elf: ElfFile) -> bool:
    """Whether its functions of NCCL's names load libnccl.so.2 and call that (ctranslate2, TensorFlow's stubs)."""
    return section_contains(elf, ".rodata", _NAME_OF_NCCL) and not section_contains(elf, ".rodata", _TEXT_OF_NCCL)
