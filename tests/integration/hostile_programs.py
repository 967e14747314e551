"""Programs of a user who wants the agent to stand still, grow or end: made from a seed, each of one kind."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

# Somebody else: counts its calls from the moment that it is let go until SIGTERM, and waits for the end of its input.
OTHER = """
import ctypes, signal, sys, time
cuda = ctypes.CDLL(sys.argv[1])
count, is_over = 0, []
signal.signal(signal.SIGTERM, lambda *_: is_over.append(1))
sys.stdin.readline()
while not is_over:
    cuda.cudaStreamSynchronize(None)
    count += 1
    time.sleep(0.002)
print(count, flush=True)
sys.stdin.readline()
"""
_CALLS = """
#include <unistd.h>
int cudaStreamSynchronize(void *);
FILLED
__attribute__((noinline)) void f(void) NAMED;
void f(void) { cudaStreamSynchronize(0); usleep(3000); }
int main(void) { for (;;) f(); }
"""
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMTAB, _STRTAB = 2, 3
_SLEEPER = """
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void begins(void) { if (!access("/library", 0)) { BODY } }
int cuGetProcAddress_v2(const char *s, void **p, int v, unsigned long f, int *q) { return 1; }
int cuLaunchKernel(void) { return 0; }
"""
_LOADER = """
import ctypes, sys, time
cuda = ctypes.CDLL(sys.argv[1])
held = [ctypes.CDLL(path) for path in sys.argv[2:]]
while True:
    cuda.cudaStreamSynchronize(None)
    time.sleep(0.003)
"""
_PYTHON = """
import ctypes, sys, time
cuda = ctypes.CDLL(sys.argv[1])
def evil(call):
    return call()
size = int(sys.argv[2])
table = {"number": bytes([0xEF]) + b"\\x7f" * size, "long": bytes([0xFF]) * size}[sys.argv[3]]
name = "co_linetable" if hasattr(evil.__code__, "co_linetable") else "co_lnotab"
functions = [type(evil)(evil.__code__.replace(**{name: table, "co_firstlineno": i + 1}), {}) for i in range(40)]
while True:
    for function in functions:
        function(lambda: cuda.cudaStreamSynchronize(None))
    time.sleep(0.003)
"""

_NAMES = """
import ctypes, random, sys, threading, time
cuda, libc, rng = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None), random.Random(int(sys.argv[2]))
def work():
    while True:
        libc.prctl(15, bytes(rng.randrange(1, 256) for _ in range(15)), 0, 0, 0)
        cuda.cudaStreamSynchronize(None)
        time.sleep(0.003)
for _ in range(8):
    threading.Thread(target=work).start()
"""


_MAPPINGS = """
import ctypes, sys, time
cuda, libc = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None)
libc.dlopen.restype, libc.dlclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for number in range(int(sys.argv[2])):
    libc.mmap(None, 4096, 1 + number % 2 * 4, 0x22, -1, 0)  # neighbours differ, so that they stay apart
while True:
    libc.dlclose(libc.dlopen(sys.argv[3].encode(), 2))
    cuda.cudaStreamSynchronize(None)
    time.sleep(0.003)
"""


def string_table(folder: Path, libraries: Path, rng: random.Random) -> list[str]:
    """A symbol table whose names lie in a hole of many GB."""
    path = _program(folder, libraries, filled=True)
    _add_sections(path, rng, tables=1, strings_bytes=1 << rng.randrange(34, 40))
    return [str(path)]


def symbol_tables(folder: Path, libraries: Path, rng: random.Random) -> list[str]:
    """Dozens of large symbol tables, each a hole."""
    path = _program(folder, libraries, filled=bool(rng.randrange(2)))
    _add_sections(path, rng, tables=rng.randrange(30, 80), strings_bytes=1 << 20, table_bytes=1 << 28)
    return [str(path)]


def mangled_name(folder: Path, libraries: Path, rng: random.Random) -> list[str]:
    """A function whose name becomes gigabytes when it is made readable."""
    levels = rng.randrange(25, 34)
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    name = "_Z1fSt4pairIiiE" + "".join(f"S_I{f'S{digits[level]}_' * 2}E" for level in range(levels))
    return [str(_program(folder, libraries, named=f'asm("{name}")'))]


def sleeping_drivers(folder: Path, libraries: Path, rng: random.Random) -> list[str]:
    """Copies of a libcuda that sleeps, or takes memory, as it is loaded; all different."""
    bodies = [
        "sleep(60);",
        "for (;;) {}",
        "for (;;) { char *p = malloc(1 << 24); for (int i = 0; i < 1 << 24; i += 4096) p[i] = 1; }",
    ]
    paths = []
    for number in range(12):
        inside = folder / str(number)
        inside.mkdir()
        (inside / "driver.c").write_text(_SLEEPER.replace("BODY", rng.choice(bodies)) + f"int n{number} = {number};")
        path = inside / "libcuda.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", path, inside / "driver.c"], check=True)
        paths.append(str(path))
    return [sys.executable, "-c", _LOADER, str(libraries / "libcudart.so.12"), *paths]


def line_tables(folder: Path, libraries: Path, rng: random.Random) -> list[str]:
    """Code objects whose line tables are one number, or have no end."""
    del folder
    size = rng.randrange(1 << 20, 1 << 22)
    return [
        sys.executable,
        "-c",
        _PYTHON,
        str(libraries / "libcudart.so.12"),
        str(size),
        rng.choice(("number", "long")),
    ]


def thread_names(folder: Path, libraries: Path, rng: random.Random) -> list[str]:
    """Threads that are called any bytes, and something else with each call."""
    del folder
    return [sys.executable, "-c", _NAMES, str(libraries / "libcudart.so.12"), str(rng.randrange(1 << 30))]


def copies(folder: Path, libraries: Path, rng: random.Random) -> list[str]:
    """Dozens of copies of one library, all different and mapped at once."""
    paths = []
    for number in range(rng.randrange(30, 80)):
        path = folder / str(number) / "libcudart.so.12"
        path.parent.mkdir()
        path.write_bytes((libraries / path.name).read_bytes() + rng.randbytes(64))
        paths.append(str(path))
    return [sys.executable, "-c", _LOADER, str(libraries / "libcudart.so.12"), *paths]


def mappings(folder: Path, libraries: Path, rng: random.Random) -> list[str]:
    """Tens of thousands of mappings, and a library that comes and goes: each time all would be read."""
    path = folder / "libcudart.so.12"
    path.write_bytes((libraries / path.name).read_bytes() + rng.randbytes(64))
    count = str(rng.randrange(20_000, 60_000))
    return [sys.executable, "-c", _MAPPINGS, str(libraries / path.name), count, str(path)]


KINDS: Sequence[Callable[[Path, Path, random.Random], list[str]]] = (
    string_table,
    symbol_tables,
    mangled_name,
    sleeping_drivers,
    line_tables,
)
MORE_KINDS = (*KINDS, thread_names, copies, mappings)  # for bench/hostile.py: tests of their own have what these attack


def _program(folder: Path, libraries: Path, *, filled: bool = False, named: str = "") -> Path:
    """filled: with as much code as a file has that may hold NCCL."""
    code = _CALLS.replace("FILLED", 'asm(".text\\n.fill 2200000,1,0x90\\n");' if filled else "").replace("NAMED", named)
    source, path = folder / "program.c", folder / "program"
    source.write_text(code)
    links = [f"-L{libraries}", "-l:libcudart.so.12", f"-Wl,-rpath,{libraries}"]
    subprocess.run(["gcc", "-O1", "-g0", "-o", path, source, *links], check=True)
    return path


def _add_sections(path: Path, rng: random.Random, *, tables: int, strings_bytes: int, table_bytes: int = 4096) -> None:
    """Other section headers than the linker's: symbol tables and their names, where the file has holes."""
    data = bytearray(path.read_bytes())
    names = b"\0.symtab\0.strtab\0.shstrtab\0"
    names_at = len(data)
    data += names + b"\0" * (-(len(data) + len(names)) % 16)
    headers_at, hole = len(data), 8 << 20
    sections = [_SECTION.pack(*(10 * [0])), _section(17, _STRTAB, names_at, len(names))]
    sections.append(_section(9, _STRTAB, hole, strings_bytes))
    tables_at = hole + rng.randrange(4096) * 4096
    sections += [_section(1, _SYMTAB, tables_at, table_bytes, link=2) for _ in range(tables)]
    data += b"".join(sections)
    struct.pack_into("<Q", data, 40, headers_at)
    struct.pack_into("<HHH", data, 58, 64, len(sections), 1)
    path.write_bytes(data)
    os.truncate(path, hole + strings_bytes + table_bytes + (32 << 20))


def _section(name: int, kind: int, offset: int, size: int, link: int = 0) -> bytes:
    return _SECTION.pack(name, kind, 0, 0, offset, size, link, 0, 8, 24)
