"""Compiles the simulated GPU and the demo's programs as the package ingero-gpusim has them, for the machines named.

Compiler: zig, which links against the symbols of any glibc. What it made is looked at: a probe on an exported function
must be cheap, and the export table that of the real library.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # whatever is installed: its sources are compiled

from ingero.demo import prebuilt  # noqa: E402  # of this checkout
from ingero.demo.c_compiler import Toolchain  # noqa: E402
from ingero.demo.gpusim import build as gpusim  # noqa: E402
from ingero.demo.workloads import native  # noqa: E402

GLIBC = "2.28"  # memfd_create is of 2.27; apsw and numpy need 2.28 themselves
MACHINES = ("x86_64", "aarch64")
PROGRAMS = {"faults/hog.c": False, "workloads/minitorch/miniaten.c": True, "workloads/minitorch/miniblas.c": True}
"""What the demo's scenarios run on the simulated GPU -> whether it is a library."""

# What a function may begin with: the kernel emulates a probe on these and single-steps others at 30 times the cost.
_CHEAP = {"x86_64": (b"\x90", b"\x55"), "aarch64": (b"\x1f\x20\x03\xd5",)}  # nop, push %rbp; nop
_FLAGS = (
    "-g0",
    "-fasynchronous-unwind-tables",  # zig's default is none, and stacks are unwound through them
    "-fno-sanitize=undefined",
    "-fno-stack-protector",
    "-Wno-unused-command-line-argument",
    f"-ffile-prefix-map={prebuilt.SOURCES}=.",
    "-Wl,--no-gc-sections",  # nothing but the names of their sections refers to the tables of calls
    "-Wl,--build-id=sha1",
    "-Wl,-s",  # the C library's start files have lines, and with them the paths of this build
)


def toolchain(machine: str) -> Toolchain:
    """zig for a machine."""
    nm = next(filter(shutil.which, ("nm", "llvm-nm")), None)
    if nm is None:
        sys.exit("no nm: apt-get install binutils")
    command = (sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{GLIBC}", *_FLAGS)
    return Toolchain(command=command, nm=nm, machine=machine)


def build(machine: str, folder: Path) -> dict[Path, str]:
    """Compile into a folder; answers each file with its name in the package."""
    compiler, libraries, programs = toolchain(machine), folder / prebuilt.LIBRARIES, folder / prebuilt.PROGRAMS
    libraries.mkdir(parents=True, exist_ok=True)
    programs.mkdir(exist_ok=True)
    gpusim.compile_all(libraries, compiler)
    made = [libraries / library.soname for library in gpusim.LIBRARIES]
    for name, is_library in PROGRAMS.items():
        made.append(native.compile_with(compiler, prebuilt.SOURCES / name, programs, shared=is_library))
    faults = [fault for library in gpusim.LIBRARIES for fault in library_faults(libraries / library.soname, library)]
    faults += [fault for path in made for fault in file_faults(path, machine)]
    if faults:
        sys.exit("\n".join(faults))
    key = folder / prebuilt.KEY
    key.write_text(f"{prebuilt.digest()}\n", encoding="ascii")
    return {path: str(path.relative_to(folder)) for path in (*made, key)}


def library_faults(path: Path, library: gpusim.Library) -> Iterator[str]:
    """What of its export table is not as in the real library."""
    with path.open("rb") as file:
        elf: Any = ELFFile(file)
        exported = {symbol.name for symbol in _exported(elf)}
        sonames = [tag.soname for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_SONAME")]
        definitions = elf.get_section_by_name(".gnu.version_d")
        nodes = {next(names).name for _, names in definitions.iter_versions()} if definitions else set()
    if sonames != [library.soname]:
        yield f"{path.name}: its soname is {sonames}"
    if differing := exported ^ set(library.names()):
        yield f"{path.name}: exported, or not, unlike the real library: {', '.join(sorted(differing)[:5])}"
    if nodes != ({library.soname} if library.has_version_node else set()):
        yield f"{path.name}: its version nodes are {sorted(nodes)}"


def file_faults(path: Path, machine: str) -> Iterator[str]:
    """Exported functions on which a probe is not cheap; what would not run with the oldest glibc or not be unwound."""
    with path.open("rb") as file:
        elf: Any = ELFFile(file)
        if elf.get_machine_arch() != {"x86_64": "x64", "aarch64": "AArch64"}[machine]:
            yield f"{path.name}: it is for {elf.get_machine_arch()}"
        code = elf.get_section_by_name(".text")
        content, base = code.data(), code["sh_addr"]
        slow = [
            symbol.name
            for symbol in _exported(elf)
            if symbol["st_info"]["type"] == "STT_FUNC"
            and not content.startswith(_CHEAP[machine], symbol["st_value"] - base)
        ]
        if any(section.name.startswith(".debug_") for section in elf.iter_sections()):
            yield f"{path.name}: it has debug information, which names paths of the build"
        if elf.get_section_by_name(".eh_frame") is None:
            yield f"{path.name}: it has no .eh_frame"
        newest = max(_glibc_versions(elf), default=(0,))
    if slow:
        yield f"{path.name}: begin with neither nop nor push: {', '.join(slow[:5])}"
    if newest > tuple(map(int, GLIBC.split("."))):
        yield f"{path.name}: needs glibc {'.'.join(map(str, newest))}"


def _exported(elf: Any) -> Iterator[Any]:
    for symbol in elf.get_section_by_name(".dynsym").iter_symbols():
        if symbol["st_shndx"] not in ("SHN_UNDEF", "SHN_ABS") and symbol["st_size"]:
            yield symbol


def _glibc_versions(elf: Any) -> Iterator[tuple[int, ...]]:
    needed = elf.get_section_by_name(".gnu.version_r")
    for _, names in needed.iter_versions() if needed else ():
        for one in names:
            if found := re.fullmatch(r"GLIBC_([\d.]+)", one.name):
                yield tuple(map(int, found[1].split(".")))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help=f"of {', '.join(MACHINES)}; default: all")
    options = parser.parse_args()
    for machine in options.machines or MACHINES:
        for path in build(machine, ROOT / "build" / "gpusim" / machine):
            print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
