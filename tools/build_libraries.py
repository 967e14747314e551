"""Builds the libbpf.so.1 and libelf.so.1 that a wheel brings along, for the machines named.

Sources: the crate libbpf-sys, which holds libbpf, elfutils' libelf and zlib as their makers released them; `cargo`
fetches it, and its checksum is compared with the one here. Compiler: zig, which links against the symbols of any glibc.
libelf (LGPL-3.0-or-later or GPL-2.0-or-later) stays a library of its own that its user may replace; zlib is hidden in
libbpf. Each has what is called of it and no more: libbpf what the binding names, libelf what that libbpf asks for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CRATE, VERSION = "libbpf-sys", "1.7.0+v1.7.0"
CRATE_SHA256 = "a109478760b2900aa2a6f2087e9d0de1d9c535b1758602af2845d5d2ccfaed7c"
GLIBC = "2.17"  # the oldest that works; manylinux_2_17
MACHINES = ("x86_64", "aarch64")
LIBRARIES = ("libbpf.so.1", "libelf.so.1")
LICENSES = {
    "libbpf.BSD-2-Clause": "libbpf/LICENSE.BSD-2-Clause",
    "libelf.LGPL-3.0": "elfutils/COPYING-LGPLV3",
    "libelf.GPL-2.0": "elfutils/COPYING-GPLV2",
    "zlib": "zlib/LICENSE",
}
COMPONENTS = (
    ("libbpf", "1.7.0", "BSD-2-Clause"),
    ("elfutils", "0.191", "LGPL-3.0-or-later OR GPL-2.0-or-later"),
    ("zlib", "1.2.13", "Zlib"),
)
ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "libraries"  # one folder a machine
_BINDING = ROOT / "src" / "ingero" / "attach" / "libbpf" / "binding.py"
_MADE_OF = "made_of.txt"  # those that are there: this file's digest, and the names that they export

_ZLIB = "adler32 crc32 deflate inffast inflate inftrees trees zutil compress uncompr gzclose gzlib gzread gzwrite"
_CONFIG = """#define PACKAGE_VERSION "0.191"
#define PACKAGE_NAME "elfutils"
#define PACKAGE_BUGREPORT ""
#define HAVE_DECL_RAWMEMCHR 1
#define HAVE_DECL_POWEROF2 1
#define HAVE_DECL_MEMPCPY 1
#define HAVE_DECL_MEMRCHR 1
#define HAVE_DECL_REALLOCARRAY 0
#define HAVE_VISIBILITY 1
#define HAVE_ERROR_H 1
#define HAVE_ERR_H 1
#define HAVE_STRERROR_R 1
#define _GNU_SOURCE 1
#define _FILE_OFFSET_BITS 64
#include <eu-config.h>
"""
_MANIFEST = """[package]
name = "sources"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies]
{crate} = "={version}"
"""


def bill_of_materials() -> dict[str, Any]:
    """What is inside, in the form of CycloneDX 1.5."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [
            {
                "type": "library",
                "name": name,
                "version": version,
                "licenses": [{"expression": license_}],
                "purl": f"pkg:cargo/{CRATE}@{VERSION.partition('+')[0]}#{name}",
                "hashes": [{"alg": "SHA-256", "content": CRATE_SHA256}],
            }
            for name, version, license_ in COMPONENTS
        ],
    }


def fetched() -> Path:
    """The unpacked sources; downloaded once."""
    target = FOLDER / "sources" / f"{CRATE}-{VERSION}"
    if not target.exists():
        if not shutil.which("cargo"):
            sys.exit("no cargo to fetch the sources of libbpf with: apt-get install cargo")
        with TemporaryDirectory() as scratch:
            manifest = Path(scratch, "Cargo.toml")
            manifest.write_text(_MANIFEST.format(crate=CRATE, version=VERSION.partition("+")[0]))
            Path(scratch, "lib.rs").touch()
            vendor = ["cargo", "vendor", "--quiet", "--versioned-dirs", "--manifest-path", str(manifest)]
            subprocess.run([*vendor, str(Path(scratch, "vendor"))], check=True, stdout=subprocess.DEVNULL)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(Path(scratch, "vendor", target.name), target)
    found = json.loads((target / ".cargo-checksum.json").read_text())["package"]
    if found != CRATE_SHA256:
        sys.exit(
            f"{target} is not what it was: its checksum is {found}, expected {CRATE_SHA256}; remove it and try again"
        )
    return target


@dataclass(frozen=True, slots=True)
class _Compiler:
    """zig for one machine. source: whose path is in no object; objects: where they go."""

    machine: str
    source: Path
    objects: Path

    @property
    def _command(self) -> list[str]:
        return [sys.executable, "-m", "ziglang", "cc", "-target", f"{self.machine}-linux-gnu.{GLIBC}"]

    def compile(self, group: str, files: Iterable[Path], *flags: str) -> list[Path]:
        """Objects of some files, in their order."""
        folder = self.objects / group
        folder.mkdir()
        maps = (f"-ffile-prefix-map={self.source}=.", f"-ffile-prefix-map={self.objects}=.")
        small = ("-Os", "-ffunction-sections", "-fdata-sections")
        no_tables = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables")  # zig asks for them otherwise
        always = (*small, *no_tables, "-fPIC", "-g0", "-fno-sanitize=undefined", "-w", *maps)

        def one(file: Path) -> Path:
            target = folder / f"{file.stem}.o"
            subprocess.run([*self._command, *always, *flags, "-c", str(file), "-o", str(target)], check=True)
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(one, sorted(files)))

    def link(self, target: Path, objects: Sequence[Path], *flags: str) -> None:
        """A shared library without symbols that nobody asks for."""
        always = ("-shared", f"-Wl,-soname,{target.name}", "-Wl,-s", "-Wl,--gc-sections", "-Wl,--build-id=none")
        subprocess.run([*self._command, *always, *map(str, objects), *flags, "-o", str(target)], check=True)

    def exporting(self, names: Iterable[str]) -> str:
        """The flag for a library that exports these; what they do not need is left out then."""
        script = self.objects / "names.map"
        script.write_text(f"{{ global: {' '.join(f'{name};' for name in names)} local: *; }};\n")
        return f"-Wl,--version-script={script}"


def build(machine: str, *, force: bool = False) -> Path:
    """The folder with both libraries of a machine, and their licenses."""
    target, names = FOLDER / machine, called_names()
    made, made_of = target / _MADE_OF, [hashlib.sha256(Path(__file__).read_bytes()).hexdigest(), *names]
    if not force and made.exists() and made.read_text().split() == made_of:
        return target
    made.unlink(missing_ok=True)
    source = fetched()
    with _scratch() as objects:
        compiler = _Compiler(machine, source, objects)
        zlib = compiler.compile(
            "zlib",
            (source / "zlib" / f"{name}.c" for name in _ZLIB.split()),
            "-fvisibility=hidden",
            "-DHAVE_HIDDEN",
            *("-DHAVE_UNISTD_H", "-DNO_GZCOMPRESS"),
        )
        target.mkdir(parents=True, exist_ok=True)
        libelf, path = _libelf(compiler), target / "libelf.so.1"
        compiler.link(path, [*libelf, *zlib])
        _libbpf(compiler, [*zlib, path], names, target)
        compiler.link(path, [*libelf, *zlib], compiler.exporting(asked_of_libelf(target / "libbpf.so.1")))
    for name, license_path in LICENSES.items():
        shutil.copy(source / license_path, target / name)
    made.write_text("\n".join(made_of) + "\n")
    return target


def called_names() -> list[str]:
    """The functions of libbpf that the binding looks up, all of them when it opens the library."""
    _, _, signatures = _BINDING.read_text(encoding="utf-8").partition("\n_SIGNATURES")
    return re.findall(r'^    "(\w+)": \(', signatures.partition("\n}")[0], re.MULTILINE)


def asked_of_libelf(libbpf: Path) -> list[str]:
    """The functions of libelf among the dynamic symbols of a libbpf; its own ones begin otherwise."""
    return sorted({name.decode() for name in re.findall(rb"\0(g?elf(?:32|64)?_[a-z0-9_]+)(?=\0)", libbpf.read_bytes())})


@contextmanager
def _scratch() -> Iterator[Path]:
    with TemporaryDirectory(prefix="ingero-libraries-") as folder:
        yield Path(folder).resolve()


def _libelf(compiler: _Compiler) -> list[Path]:
    source, config = compiler.source / "elfutils", compiler.objects / "config"
    config.mkdir()
    (config / "config.h").write_text(_CONFIG)
    return compiler.compile(
        "libelf",
        (source / "libelf").glob("*.c"),
        "-std=gnu99",
        *("-DHAVE_CONFIG_H", "-DPIC", "-DSHARED", "-D_GNU_SOURCE"),
        *(f"-I{path}" for path in (config, compiler.source / "zlib", source / "lib", source / "libelf")),
    )


def _libbpf(compiler: _Compiler, others: Sequence[Path], names: Iterable[str], target: Path) -> None:
    source, headers = compiler.source / "libbpf", compiler.objects / "headers"
    headers.mkdir()
    for name in ("libelf", "gelf", "elf", "nlist"):
        shutil.copy(compiler.source / "elfutils" / "libelf" / f"{name}.h", headers)
    objects = compiler.compile(
        "libbpf",
        (source / "src").glob("*.c"),
        *("-D_LARGEFILE64_SOURCE", "-D_FILE_OFFSET_BITS=64", "-fvisibility=hidden"),
        *(f"-I{path}" for path in (headers, compiler.source / "zlib")),
        *(f"-I{source / path}" for path in ("include", "include/uapi", "src")),
    )
    compiler.link(target / "libbpf.so.1", [*objects, *others], compiler.exporting(names), "-Wl,-rpath,$ORIGIN")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help=f"of {', '.join(MACHINES)}; default: all")
    parser.add_argument("--force", action="store_true", help="build even what is there")
    options = parser.parse_args()
    for machine in options.machines or MACHINES:
        folder = build(machine, force=options.force)
        print(*(f"{folder / name}: {(folder / name).stat().st_size:,} bytes" for name in LIBRARIES), sep="\n")


if __name__ == "__main__":
    main()
