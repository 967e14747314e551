"""Finds the simulated CUDA, NCCL and NVML libraries prebuilt, or builds them with a C compiler, once per version."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingero.demo import prebuilt
from ingero.demo.c_compiler import Toolchain, c_compiler, host_toolchain, why_no_compiler
from ingero.demo.gpusim import stubs
from ingero.errors import IngeroError

SOURCES = Path(__file__).parent

RUNTIME_SONAMES = {"11": "libcudart.so.11.0", "12": "libcudart.so.12", "13": "libcudart.so.13"}
"""Major CUDA version -> file name of its runtime library."""

_FLAGS = [
    "-O2",
    "-std=gnu11",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-omit-frame-pointer",
    # Each function begins with a nop: the kernel emulates a probe on one and single-steps a mov, which costs 30 times
    # as much and would charge the agent with it. The real libraries begin with push, which is emulated, too.
    "-fpatchable-function-entry=1",
]
_FLAGS_OF_MACHINE = {"x86_64": ["-fcf-protection=none"]}  # an endbr64 would come before the nop
# Or an internal entry and the exported one, being equal, become one function; other compilers leave them two.
_FLAGS_OF_GCC = ["-fno-ipa-icf"]
_WAY_OUT = (
    f"{prebuilt.INSTALL}, or in a checkout: apt-get install gcc libc6-dev (Debian, Ubuntu), dnf install gcc (Fedora)"
)


class BuildError(IngeroError):
    """The simulated GPU cannot be built here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One shared library: its sources and its export table."""

    soname: str
    folder: str
    common: tuple[str, ...]
    defines: tuple[str, ...] = ()
    has_version_node: bool = False
    unsupported: int
    """What a name that has no implementation returns."""

    def names(self) -> list[str]:
        """The names that the real library exports."""
        return (SOURCES / "names" / f"{self.soname}.txt").read_text(encoding="ascii").split()

    def sources(self) -> list[Path]:
        """The C files, in a stable order."""
        own = sorted((SOURCES / self.folder).glob("*.c"))
        return own + [SOURCES / "common" / f"{name}.c" for name in self.common]


LIBRARIES = (
    Library(
        soname="libcuda.so.1",
        folder="driver",
        common=("device", "knobs", "shared_file", "truth"),
        defines=("GPUSIM_INTERNAL_ENTRIES",),
        unsupported=801,
    ),
    *(
        Library(
            soname=soname,
            folder="runtime",
            common=("shared_file", "truth"),
            defines=(f"CUDART_VERSION={version}0{minor}0",),
            has_version_node=True,
            unsupported=801,
        )
        for (version, soname), minor in zip(RUNTIME_SONAMES.items(), ("8", "9", "0"), strict=True)
    ),
    Library(soname="libnccl.so.2", folder="nccl", common=("knobs", "shared_file", "truth"), unsupported=5),
    Library(soname="libnvidia-ml.so.1", folder="nvml", common=("device", "knobs", "shared_file"), unsupported=3),
)


def build(destination: Path | None = None) -> Path:
    """Return the folder with the libraries: those of ingero-gpusim, or built here (a few seconds, once per version).

    Args:
        destination: the folder to build into; by default one named after a hash of the sources in the user's cache.

    Raises:
        BuildError: nothing fitting is installed, and there are no sources or no compiler, or it reports an error.
    """
    if destination is None and (made := prebuilt.folder()):
        return made / prebuilt.LIBRARIES
    key = _key()
    folder = destination or _cache() / key
    marker = folder / "key"
    if marker.exists() and marker.read_text(encoding="ascii") == key:
        return folder
    if missing := why_no_compiler() if prebuilt.has_sources() else "its sources are not here":
        raise BuildError(f"the simulated GPU cannot be built: {missing}", hint=_WAY_OUT)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".building-"))
    try:
        compile_all(scratch, host_toolchain())
        folder.mkdir(exist_ok=True)
        for path in [*(scratch / library.soname for library in LIBRARIES)]:
            path.rename(folder / path.name)  # atomic, so that two builds at a time do no harm
        (scratch / "key").write_text(key, encoding="ascii")
        (scratch / "key").rename(marker)
    finally:
        shutil.rmtree(scratch)
    return folder


def why_not_here() -> str:
    """Why there is no simulated GPU on this host, and the way out; "" where it is prebuilt or can be built."""
    not_prebuilt = prebuilt.why_not()
    if not not_prebuilt:
        return ""
    if not prebuilt.has_sources():
        return f"{not_prebuilt}: {prebuilt.INSTALL}"
    missing = why_no_compiler()
    return missing and f"{missing}, and {not_prebuilt}: {prebuilt.INSTALL}"


def runtime_path(lib_dir: Path, version: Literal["11", "12", "13"] = "12") -> Path:
    """Return the CUDA runtime library of one major version."""
    return lib_dir / RUNTIME_SONAMES[version]


def environment(
    lib_dir: Path,
    *,
    ctl: Path | None = None,
    trace: Path | None = None,
    sched: Literal["spin", "yield", "block"] | None = None,
    gpa: Literal["exported", "internal"] | None = None,
    runtime: Literal["11", "12", "13"] | None = None,
    devices: int | None = None,
    device_shm: Path | None = None,
) -> dict[str, str]:
    """Return the variables (to be merged into a child's environment) that make it use the simulated GPU.

    Args:
        lib_dir: what `build` returned.
        ctl: knob file (`knobs.Knobs`); processes that name the same one share the devices.
        trace: ground-truth file (`truth.read`); `%p` in it becomes the pid.
        sched: how waits for the device spend their time; spin by default.
        gpa: whether cuGetProcAddress hands out exported functions (default) or entries without a symbol.
        runtime: sets GPUSIM_RUNTIME to the path of that libcudart, for programs that choose one themselves.
        devices: number of devices, 1 by default.
        device_shm: file with the state of the devices, if it is not to be derived from `ctl`.
    """
    inherited = os.environ.get("LD_LIBRARY_PATH")
    values = {
        "LD_LIBRARY_PATH": f"{lib_dir}:{inherited}" if inherited else str(lib_dir),
        "GPUSIM_LIB": lib_dir,
        "GPUSIM_CTL": ctl,
        "GPUSIM_TRACE": trace,
        "GPUSIM_SCHED": sched,
        "GPUSIM_GPA": gpa,
        "GPUSIM_RUNTIME": runtime and runtime_path(lib_dir, runtime),
        "GPUSIM_DEVICES": devices,
        "GPUSIM_DEVICE_SHM": device_shm,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ingero" / "gpusim"


def _key() -> str:
    digest = hashlib.sha256(c_compiler().encode())
    builders = {Path(__file__).name, Path(stubs.__file__).name}
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix not in {".c", ".h", ".txt"} and path.name not in builders:
            continue
        digest.update(f"{path.relative_to(SOURCES)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compile_all(folder: Path, toolchain: Toolchain) -> None:
    """Compile every library into a folder, beside its objects.

    Raises:
        BuildError: the compiler reports an error.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = {
            library: [pool.submit(_compile, source, library, folder, toolchain) for source in library.sources()]
            for library in LIBRARIES
        }
        for library, futures in objects.items():
            _link(library, [future.result() for future in futures], folder, toolchain)


def compile_command(library: Library, toolchain: Toolchain | None = None) -> list[str]:
    """Return the compile command of a library, without the source and the kind of output."""
    with_ = toolchain or host_toolchain()
    includes = [f"-I{SOURCES / name}" for name in ("common", library.folder)]
    flags = [*_FLAGS, *_FLAGS_OF_MACHINE.get(with_.machine, ())]
    compiler = [*with_.command, *flags, *(_FLAGS_OF_GCC if with_.command[0] == "gcc" else [])]
    return [*compiler, *(f"-D{define}" for define in library.defines), *includes]


def _compile(source: Path, library: Library, folder: Path, toolchain: Toolchain) -> Path:
    output = folder / f"{library.soname}.{source.stem}.o"
    run([*compile_command(library, toolchain), "-c", "-o", str(output), str(source)])
    return output


def _link(library: Library, objects: list[Path], folder: Path, toolchain: Toolchain) -> None:
    names = library.names()
    implemented = _defined(objects, toolchain)
    source = folder / f"{library.soname}.stubs.c"
    source.write_text(stubs.source([name for name in names if name not in implemented], library.unsupported))
    script = folder / f"{library.soname}.map"
    node = library.soname if library.has_version_node else ""
    script.write_text(f"{node} {{ global: {' '.join(f'{name};' for name in names)} local: *; }};\n")
    stub_object = _compile(source, library, folder, toolchain)
    run(
        [
            *(*toolchain.command, "-shared", "-s", "-Wl,--build-id=sha1", "-Wl,-z,defs", "-Wl,-rpath,$ORIGIN"),
            f"-Wl,-soname,{library.soname}",
            f"-Wl,--version-script={script}",
            *("-o", str(folder / library.soname)),
            *(str(path) for path in [*objects, stub_object]),
            *("-lpthread", "-ldl"),
        ]
    )


def _defined(objects: list[Path], toolchain: Toolchain) -> set[str]:
    output = run([toolchain.nm, "--defined-only", "--extern-only", "--format=posix", *(str(path) for path in objects)])
    return {line.split()[0] for line in output.splitlines() if len(line.split()) > 1}


def run(command: list[str]) -> str:
    """Run a tool and return its output.

    Raises:
        BuildError: it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(
            f"{command[0]} failed with status {done.returncode}: {done.stderr.strip()[:2000]}",
            hint="check that a C compiler and the C library's headers are installed: apt-get install gcc libc6-dev",
        )
    return done.stdout
