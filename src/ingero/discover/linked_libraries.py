"""Finds NCCL or the CUDA runtime linked into another library or the program: by symbols, or named without any."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from ingero.discover.elf import ElfFile
from ingero.discover.library_files import TEXT_OF, LibraryFile, describe, only_loads
from ingero.discover.mappings import Mapping, parse_maps
from ingero.discover.symbol_table import function_offsets, section_contains
from ingero.ops import Library

# NCCL's own code is over 1 MiB, the runtime's (12.9) 0.5 MiB: a file that maps much less executable holds neither
_MIN_CODE_BYTES = {Library.NCCL: 1 << 20, Library.CUDART: 3 << 17}
# who is known to be linked with them; the others are only asked for what they export, which takes a few reads
_KNOWN_HOSTS = re.compile(r"torch_cuda|c10_cuda|tensorflow|paddle|mxnet|xla|jax|nccl")
# no plugin of NCCL, and no other library of CUDA
_ITSELF = {
    library: re.compile(rb"/%s(?:-[0-9a-f]{6,})?\.so(?:\.\d+)*(?: \(deleted\))?$" % name.encode(), re.MULTILINE)
    for library, name in ((one, one.value) for one in TEXT_OF)
}
_OF_CUDA_ITSELF = "libcu"  # cuBLAS, cuDNN and others have a runtime of their own inside, which does not matter here
# Any of them: the linker leaves out unused parts of an archive.
_WITNESSES = {
    Library.NCCL: ("ncclCommInitRank", "ncclCommInitRankConfig", "ncclCommInitAll"),
    Library.CUDART: ("cudaLaunchKernel", "cudaMalloc", "cudaMemcpy", "cudaMemcpyAsync", "cudaDeviceSynchronize"),
}
_WHAT = {Library.NCCL: "NCCL", Library.CUDART: "the CUDA runtime"}
_WAYS_OUT = {
    Library.NCCL: "use a build that links libnccl.so.2, or one that is not stripped (nm FILE | grep ncclAllReduce)",
    Library.CUDART: "build it with nvcc -cudart shared, or do not strip it (nm FILE | grep cudaLaunchKernel)",
}
_STILL_SEEN = {Library.CUDART: "; those of the driver below it are"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedLibraries:
    """Libraries linked into one file. stripped: libraries it contains without symbols."""

    files: tuple[LibraryFile, ...] = ()
    stripped: frozenset[Library] = frozenset()


def stripped_reason(library: Library, path: str) -> str:
    """Why calls of a library linked into a file without symbols are not traced."""
    what, seen = _WHAT[library], _STILL_SEEN.get(library, "")
    return f"{what} is linked into {path} statically and its symbols were stripped: its calls are not seen{seen}"


def names_of(libraries: Collection[Library]) -> str:
    """The common names of libraries."""
    return " or ".join(text for library, text in _WHAT.items() if library in libraries)


def way_out(library: Library) -> str:
    """The fix for a library without symbols."""
    return _WAYS_OUT[library]


def wanted_libraries(raw_maps: bytes) -> frozenset[Library]:
    """The libraries that a CUDA process may have linked into another file, as it maps none of that name."""
    if b"/libcuda" not in raw_maps:
        return frozenset()
    return frozenset(library for library, itself in _ITSELF.items() if not itself.search(raw_maps))


def candidates(raw_maps: bytes, wanted: Collection[Library]) -> Iterator[Mapping]:
    """The mapped files of a process that may contain wanted libraries; one mapping per file."""
    least_bytes = min((_MIN_CODE_BYTES[library] for library in wanted), default=0)
    for mapped in parse_maps(raw_maps) if wanted else ():
        is_code = "x" in mapped.permissions and mapped.end - mapped.start >= least_bytes
        if is_code and mapped.path.startswith("/") and not PurePath(mapped.path).name.startswith(_OF_CUDA_ITSELF):
            yield mapped


def is_likely_host(name: str) -> bool:
    """Whether a file of this name is a program, or a library known to contain linked ones."""
    return ".so" not in name or bool(_KNOWN_HOSTS.search(name))


def identify_linked(path: Path, name: str, descriptor: int | None = None) -> LinkedLibraries:
    """The traced libraries that were linked into a file.

    name: the file name, where `path` is only a way to reach it. descriptor: of the file, where it is open already.

    Raises:
        OSError: the file is gone or may not be read.
        UnreadableElfError: it is damaged.
    """
    with ElfFile(path, descriptor) as elf:
        is_searched = is_likely_host(name)
        found = {library: _how_linked(elf, library, is_searched=is_searched) for library in TEXT_OF}
        return LinkedLibraries(
            files=tuple(describe(elf, library) for library, is_there in found.items() if is_there),
            stripped=frozenset(library for library, is_there in found.items() if is_there is None),
        )


def _how_linked(elf: ElfFile, library: Library, *, is_searched: bool) -> bool | None:
    """Whether a file contains a library; None: yes, but without symbols. is_searched: beyond its exports."""
    witnesses = _WITNESSES[library]
    is_exported = bool(elf.functions(witnesses))
    if not is_exported and (not is_searched or any(library.value in needed for needed in elf.needed)):
        return False
    if is_exported or function_offsets(elf, witnesses):
        return not only_loads(elf, library)
    return None if section_contains(elf, ".rodata", TEXT_OF[library]) else False
