"""Stubs of the CUDA libraries that a real PyTorch wheel needs beside the simulated ones, made from its own imports."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ingero.demo.c_compiler import c_compiler
from ingero.demo.gpusim import build
from ingero.discover.elf import ElfFile
from ingero.errors import IngeroError

_FLAGS = ["-O2", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fpatchable-function-entry=1", "-w"]

# Library -> how its functions begin. Longer prefixes first: cublas would also match cublasLt.
_PREFIXES = {
    "libcublasLt": "cublasLt",
    "libcublas": "cublas",
    "libcudnn": "cudnn",
    "libcufft": "cufft",
    "libcufile": "cuFile",
    "libcupti": "cupti",
    "libcurand": "curand",
    "libcusolver": "cusolver",
    "libcusparseLt": "cusparseLt",
    "libcusparse": "cusparse",
    "libnvrtc": "nvrtc",
    "libnvToolsExt": "nvtx",
    "libnvJitLink": "nvJitLink",
    "libnvshmem_host": "nvshmem",
}
_SOURCES = {"libcublas": ("gemm", "cublas"), "libcublasLt": ("gemm", "cublaslt")}
_PRODUCT = re.compile(r"[gG]emm|[gG]emv|[dD]ot|Matmul")
_NO_PRODUCT = re.compile(r"Create|Destroy|Set|Get|Init")
_CUPTI_UNAVAILABLE = 1  # its caller then does without; any other stub reports success


class TorchStubsError(IngeroError):
    """A folder that is not the library folder of a PyTorch wheel, or a library without a rule here."""


@dataclass(frozen=True, slots=True)
class Import:
    """A function that torch imports: its name and, if it has one, its version node."""

    name: str
    version: str


def build_for_torch(torch_lib: Path, destination: Path) -> Path:
    """Fill a folder with the simulated libraries and a stub of every other CUDA library that torch was linked with.

    With LD_LIBRARY_PATH set to it, torch trains without a GPU and without the nvidia-* wheels; its numbers are
    garbage, its calls are real.

    Args:
        torch_lib: `site-packages/torch/lib`.
        destination: the folder to fill.

    Raises:
        TorchStubsError: torch_lib is something else, or needs a library that no rule covers.
        BuildError: gcc is missing or fails.
    """
    libraries = sorted(torch_lib.glob("lib*.so*"))
    if not any(path.name == "libtorch_cuda.so" for path in libraries):
        raise TorchStubsError(
            f"{torch_lib} has no libtorch_cuda.so",
            hint="give the folder torch/lib of a CUDA build: pip install torch (not the +cpu build)",
        )
    destination.mkdir(parents=True, exist_ok=True)
    for path in build.build().glob("lib*.so*"):
        shutil.copy2(path, destination)
    link = destination / "libcuda.so"  # what Triton links its launchers with
    link.unlink(missing_ok=True)
    link.symlink_to("libcuda.so.1")
    imports = _imports(libraries)
    simulated = {library.soname for library in build.LIBRARIES}
    for soname in sorted(_needed(libraries) - simulated):
        _build_stub(soname, imports, destination)
    return destination


def _imports(libraries: list[Path]) -> set[Import]:
    output = build.run(["nm", "-D", "--undefined-only", "--format=posix", *(str(path) for path in libraries)])
    found = set()
    for line in output.splitlines():
        name, _, version = line.split()[0].partition("@")
        found.add(Import(name, version.strip("@")))
    return found


def _needed(libraries: list[Path]) -> set[str]:
    needed: set[str] = set()
    for path in libraries:
        with ElfFile(path) as library:
            needed |= {name for name in library.needed if re.match(r"lib(cu|nv|nccl)", name)}
    return needed


def _build_stub(soname: str, imports: set[Import], destination: Path) -> None:
    library = soname.split(".so", maxsplit=1)[0]
    if library not in _PREFIXES:
        raise TorchStubsError(f"torch needs {soname}, and there is no rule for it", hint="add it to _PREFIXES")
    mine = sorted(
        (item for item in imports if _library_of(item.name) == library), key=lambda item: (item.name, item.version)
    )
    sources = [build.SOURCES / "cublas" / f"{name}.c" for name in _SOURCES.get(library, ())]
    implemented = set(re.findall(r"^EXPORT \w+ (\w+)\(", "".join(path.read_text() for path in sources), re.MULTILINE))
    generated = destination / f"{library}.c"
    generated.write_text(_stub_source(library, [item.name for item in mine if item.name not in implemented]))
    script = destination / f"{library}.map"
    nodes = sorted({item.version for item in mine if item.version})
    script.write_text("".join(f"{node} {{ global: *; }};\n" for node in nodes))
    build.run(
        [
            *(c_compiler(), "-shared", *_FLAGS, f"-I{build.SOURCES / 'cublas'}", f"-Wl,-soname,{soname}"),
            *([f"-Wl,--version-script={script}"] if nodes else []),
            *("-o", str(destination / soname), str(generated), *(str(path) for path in sources)),
            *("-lpthread", "-ldl"),
        ]
    )
    generated.unlink()
    script.unlink()


def _library_of(name: str) -> str | None:
    for library, prefix in _PREFIXES.items():
        if name.startswith(prefix):
            return library
    return None


def _stub_source(library: str, names: list[str]) -> str:
    result = _CUPTI_UNAVAILABLE if library == "libcupti" else 0
    lines = ['#include "gemm.h"']
    for name in names:
        computes = library.startswith("libcublas") and _PRODUCT.search(name) and not _NO_PRODUCT.search(name)
        lines.append(f"STUB_GEMM({name})" if computes else f"STUB({name}, {result})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(build_for_torch(Path(sys.argv[1]), Path(sys.argv[2])))
