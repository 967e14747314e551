"""Programs whose memory does not answer: a file system that is asked to read or to close a file never does.

The programs are linked statically: a probe on a file that one of them maps would wait for the same lock in the kernel,
and with it every fork of the host.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.targets import until

_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)

# A file system with one file, which can be opened, and neither read nor closed. include/uapi/linux/fuse.h, 7.31
_SERVER = """
import os, struct, sys
device = int(sys.argv[1])
header, out = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
LOOKUP, FORGET, GETATTR, OPEN, READ, FLUSH, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 25, 26, 36, 42
folder = struct.pack("<6Q10I", 1, 4096, 1, 0, 0, 0, 0, 0, 0, 0o040755, 2, 0, 0, 0, 4096, 0)
file = struct.pack("<6Q10I", 2, 65536, 128, 0, 0, 0, 0, 0, 0, 0o100444, 1, 0, 0, 0, 4096, 0)
while True:
    _, kind, unique, node, *_ = header.unpack_from(os.read(device, 1 << 17))
    if kind in (READ, FLUSH, FORGET, INTERRUPT, BATCH_FORGET):
        continue
    answer = {
        INIT: struct.pack("<IIIIHHII32x", 7, 31, 1 << 16, 0, 12, 9, 1 << 16, 1),
        LOOKUP: struct.pack("<4Q2I", 2, 0, 3600, 3600, 0, 0) + file,
        GETATTR: struct.pack("<QII", 3600, 0, 0) + (folder if node == 1 else file),
        OPEN: struct.pack("<QII", 1, int(sys.argv[2]), 0),
    }.get(kind)
    error = 0 if answer else -38  # ENOSYS: the kernel does without
    os.write(device, out.pack(out.size + len(answer or b""), error, unique) + (answer or b""))
"""

# Both say "held" when whoever asks is about to be held up.
_PROGRAMS = {
    # in the middle of an exec, which closes the file: environ, maps, mem and the stack wait for its end
    "exec": """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **given)
{
	open(given[1], O_RDONLY | O_CLOEXEC);
	puts("held");
	fflush(stdout);
	return execl("/bin/true", "true", NULL);
}
""",
    # a page is read for it while it maps something else: all that reads its memory waits
    "map": """
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(int count, char **given)
{
	int file = open(given[1], O_RDONLY);
	char *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0), name[64], byte;
	pid_t self = getpid();

	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, 9);
		snprintf(name, sizeof(name), "/proc/%d/mem", self);
		pread(open(name, O_RDONLY), &byte, 1, (off_t)page);
		return 0;
	}
	usleep(300000);
	puts("held");
	fflush(stdout);
	mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return 0;
}
""",
}
KINDS = tuple(_PROGRAMS)


@contextmanager
def dead_file(folder: Path, *, is_cached: bool = True) -> Iterator[Path]:
    """A file that can be opened; whoever reads or closes it waits until the block is left.

    is_cached: who comes later waits for the first one to read it; else each asks for itself, and cannot be ended then.
    """
    place = folder / "dead"
    place.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"dead", os.fsencode(place), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    flags = 0 if is_cached else 1  # FOPEN_DIRECT_IO
    server = subprocess.Popen([sys.executable, "-c", _SERVER, str(device), str(flags)], pass_fds=[device])
    os.close(device)
    try:
        yield place / "file"
    finally:
        server.kill()  # its end closes the last descriptor, which lets go of all who wait
        server.wait()
        _libc.umount2(os.fsencode(place), _MNT_DETACH)


def program(folder: Path, kind: str) -> Path:
    """Builds one of these programs, which takes the path of a dead file."""
    source, path = folder / f"{kind}.c", folder / kind
    source.write_text(_PROGRAMS[kind])
    subprocess.run(["gcc", "-static", "-w", "-o", path, source], check=True)
    return path


@contextmanager
def withholding(folder: Path, kind: str) -> Iterator[int]:
    """A process whose memory does not answer until the block is left: its pid."""
    path, process = program(folder, kind), None
    try:
        with dead_file(folder) as file:
            process = subprocess.Popen([path, file], stdout=subprocess.PIPE, text=True)
            try:
                assert process.stdout
                assert process.stdout.readline() == "held\n"
                until(lambda: _is_held(process.pid, kind), "its memory is held")
                yield process.pid
            finally:
                process.kill()
    finally:
        if process:
            process.communicate()  # it ends when the file lets go of it


def _is_held(pid: int, kind: str) -> bool:
    """Asks as a process that can be ended."""
    name = {"exec": "environ", "map": "cmdline"}[kind]
    asks = subprocess.Popen(["cat", f"/proc/{pid}/{name}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asks.wait(0.3)
    except subprocess.TimeoutExpired:
        return True
    finally:
        asks.kill()
        asks.wait()
    return False
