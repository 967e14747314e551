"""Processes that load a small stand-in for libcudart and call it on command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LIBRARY = """
#include <stddef.h>
int cudaMalloc(void **block, size_t size) { *block = (void *)size; return 0; }
int cudaFree(void *block) { return block == 0; }
"""

# Reads one command per line and answers each with "done". After `exec` the new program reads on.
CALLER = """
import ctypes, os, sys, time
code, library, pointer = sys.argv[1], None, ctypes.c_void_p()
def call(times, size):
    for _ in range(times):
        library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
def fork(children, times, size, pause_ms=0):
    for _ in range(children):
        time.sleep(pause_ms / 1000)
        pid = os.fork()
        if pid == 0:
            call(times, size)
            os._exit(0)
        os.waitpid(pid, 0)
print("done", flush=True)
for line in sys.stdin:
    verb, *rest = line.split()
    if verb == "load":
        library = ctypes.CDLL(rest[0])
    elif verb == "exec":
        os.execv(sys.executable, [sys.executable, "-c", code, code])
    else:
        {"call": call, "fork": fork}[verb](*map(int, rest))
    print("done", flush=True)
"""


def build_library(folder: Path, *flags: str) -> Path:
    """The stand-in, as `folder`/libcudart.so.12."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "library.c").write_text(LIBRARY)
    path = folder / "libcudart.so.12"
    common = ["-O0", "-fno-omit-frame-pointer", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.12"]
    subprocess.run(["gcc", *common, *flags, "-o", path, folder / "library.c"], check=True)
    return path


class Caller:
    """A process that executes one command at a time."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", CALLER, CALLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self._wait()

    def do(self, *command: object) -> None:
        """load PATH; call TIMES SIZE; fork CHILDREN TIMES SIZE [PAUSE_MS] (one after the other); exec."""
        assert self.process.stdin
        self.process.stdin.write(" ".join(map(str, command)) + "\n")
        self.process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        """Ends the process's loop."""
        self.process.communicate()


@contextmanager
def caller(prefix: Sequence[str] = ()) -> Iterator[Caller]:
    """A caller that ends with the block. prefix: a command that runs it, without becoming another process."""
    started = Caller(prefix)
    try:
        yield started
    finally:
        started.process.kill()
        started.end()
