"""Finds the workloads' small C and C++ programs prebuilt, or builds them, once per content, into the user's cache."""

import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ingero.demo import prebuilt
from ingero.demo.c_compiler import Toolchain, c_compiler
from ingero.errors import IngeroError

SOURCES = Path(__file__).parent

# A nop as the first instruction of every function keeps a probe on it cheap to emulate, as in compilers' own output.
_COMMON = ("-O2", "-g", "-Wall", "-Wextra", "-fno-omit-frame-pointer", "-fpatchable-function-entry=1")
_LIBRARY = ("-shared", "-fPIC")
_PROGRAM = ("-pthread", "-ldl")


class BuildError(IngeroError):
    """A program could not be compiled."""


def cache_directory() -> Path:
    """Return where built programs are kept: $XDG_CACHE_HOME/ingero, else ~/.cache/ingero."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ingero"


def build(name: str) -> Path:
    """Return the compiled program `name` (calls, unwinding, sandboxed, forker), building it if its source changed.

    Raises:
        BuildError: no such source, no compiler, or the compiler refused it.
    """
    for suffix in (".c", ".cpp"):
        source = SOURCES / f"{name}{suffix}"
        if source.exists():
            return build_source(source)
    raise BuildError(f"no source for program {name!r} in {SOURCES}", hint="names: calls, unwinding, sandboxed, forker")


def build_source(source: Path, *, shared: bool = False) -> Path:
    """Compile one C or C++ file to a program, or to `lib<name>.so` when `shared`; return the cached result.

    Of the demo's own files, what ingero-gpusim has of them comes first.

    Raises:
        BuildError: no source, no compiler, or the compiler refused the source.
    """
    if made := prebuilt.program(source):
        return made
    if not source.exists():
        raise BuildError(f"there is no {source.name} here, nor what is made of it", hint=prebuilt.INSTALL)
    compiler = "g++" if source.suffix == ".cpp" else c_compiler()
    headers = sorted(source.parent.glob("*.h"))
    command, libraries = _command((compiler,), source, shared=shared)
    content = b"\0".join([*map(str.encode, [*command, *libraries]), *(f.read_bytes() for f in (source, *headers))])
    folder = cache_directory() / "native" / hashlib.sha256(content).hexdigest()[:16]
    built = folder / (f"lib{source.stem}.so" if shared else source.stem)
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile([*command, *libraries], built)
    return built


def compile_with(toolchain: Toolchain, source: Path, folder: Path, *, shared: bool = False) -> Path:
    """Compile one C file into a folder, for the machine of the toolchain.

    Raises:
        BuildError: the compiler refused the source.
    """
    command, libraries = _command(toolchain.command, source, shared=shared)
    built = folder / (f"lib{source.stem}.so" if shared else source.stem)
    _compile([*command, *libraries], built)
    return built


def _command(compiler: Sequence[str], source: Path, *, shared: bool) -> tuple[list[str], tuple[str, ...]]:
    """The command that compiles a file, and the libraries that stand behind its output option."""
    return [*compiler, *_COMMON, *(_LIBRARY if shared else ()), str(source)], () if shared else _PROGRAM


def _compile(command: list[str], built: Path) -> None:
    """Compile beside `built` and rename, so that parallel builds never run a half-written file."""
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        output = Path(scratch) / built.name
        try:
            subprocess.run([*command, "-o", str(output)], check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise BuildError(f"no compiler: {command[0]}", hint="apt-get install gcc g++ libc6-dev") from error
        except subprocess.CalledProcessError as error:
            raise BuildError(f"compiling {built.name} failed:\n{error.stderr}", hint=shlex.join(command)) from error
        output.replace(built)
