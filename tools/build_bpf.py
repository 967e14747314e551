"""Compiles every `*.bpf.c` into `src/ingero/bpf/objects/<machine>/`, for this machine or for those named.

The compiler is $BPF_CLANG, else `clang`, else the one in the `ziglang` package.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "src" / "ingero" / "bpf"
ARCHITECTURES = {"x86_64": "x86", "aarch64": "arm64"}
FLAGS = (
    "-O2",
    "-g",
    "-fdebug-compilation-dir=.",
    "-mcpu=v3",
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
    "-Wno-unused-parameter",
    "-Wno-missing-declarations",
    "-Werror",
)


def compiler() -> list[str]:
    """The command that compiles C to BPF."""
    chosen = os.environ.get("BPF_CLANG") or shutil.which("clang")
    if chosen:
        return [chosen, "-target", "bpf"]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc", "-target", "bpfel-freestanding"]
    sys.exit("no BPF compiler: apt-get install clang, or pip install ziglang, or set BPF_CLANG")


def build(machine: str, *, force: bool) -> None:
    """Compiles what is older than its source or any header."""
    target = SOURCES / "objects" / machine
    target.mkdir(parents=True, exist_ok=True)
    newest_header = max(path.stat().st_mtime for path in SOURCES.glob("*.h"))
    for source in sorted(SOURCES.glob("*.bpf.c")):
        output = target / source.with_suffix(".o").name
        if force or not output.exists() or output.stat().st_mtime < max(newest_header, source.stat().st_mtime):
            command = [
                *compiler(),
                *FLAGS,
                f"-D__TARGET_ARCH_{ARCHITECTURES[machine]}",
                "-c",
            ]
            command += [source.name, "-o", str(output)]
            subprocess.run(command, check=True, cwd=SOURCES)  # relative names: debug information holds them
            print(f"built {output.relative_to(SOURCES.parent)}")


def strip(path: Path, *, required: bool) -> None:
    """Takes debug information and labels out of an object; its BTF stays. required: a missing tool is no excuse."""
    found = next(filter(None, map(shutil.which, ("llvm-strip", *(f"llvm-strip-{n}" for n in range(30, 13, -1))))), None)
    if found:
        labels = ("--wildcard", "--strip-symbol=LBB*")  # of jumps, which are resolved
        subprocess.run([found, "--strip-debug", *labels, str(path)], check=True)
    elif required:
        sys.exit("no llvm-strip: apt-get install llvm")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "machines", nargs="*", metavar="MACHINE", help=f"of {', '.join(ARCHITECTURES)}; default: this one"
    )
    parser.add_argument("--force", action="store_true", help="compile even what is up to date")
    options = parser.parse_args()
    for machine in options.machines or [platform.machine()]:
        build(machine, force=options.force)


if __name__ == "__main__":
    main()
