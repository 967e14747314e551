"""A file system in user space with one file, each read of which takes as long as a knob says: a stalled network mount.

It speaks the kernel's own protocol on /dev/fuse. Source: linux/fuse.h (structures of version 7.23 and later).
"""

import argparse
import ctypes
import os
import stat
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from ingero.demo.workloads import lifecycle
from ingero.errors import IngeroError

FILE_NAME = "data"
MAX_READ_BYTES = 128 << 10  # of one request, unless a server asks for more
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE = 1, 2, 3, 14, 15, 18
_FLUSH, _INIT, _INTERRUPT, _BATCH_FORGET = 25, 26, 36, 42
_ROOT_NODE, _FILE_NODE = 1, 2
_DIRECT_IO = 1  # FOPEN_DIRECT_IO: nothing is cached, each read comes here
_IN = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")
_READ_IN = struct.Struct("=QQI")
_ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
_INIT_OUT = struct.Struct("=IIIIHHIIHHI28x")
_REQUEST_BYTES = 1 << 20
_ENOENT, _ENOSYS = 2, 38
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MNT_DETACH = 1, 2, 4, 2

_libc = ctypes.CDLL(None, use_errno=True)


class MountError(IngeroError):
    """The file system could not be mounted."""


def mount(device: int, folder: Path) -> None:
    """Mount the file system that this process serves on /dev/fuse.

    Raises:
        MountError: the kernel refused.
    """
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    if _libc.mount(b"slow", str(folder).encode(), b"fuse", flags, options):
        raise MountError(f"mounting on {folder}: {os.strerror(ctypes.get_errno())}", hint="run as root")


def unmount(folder: Path) -> None:
    """Unmount it; programs that still read from it get an error."""
    _libc.umount2(str(folder).encode(), _MNT_DETACH)


class SlowFile:
    """Answers the kernel's requests about the one file of `size_bytes`."""

    def __init__(self, device: int, size_bytes: int, knob: Path | None) -> None:
        self.device = device
        self.size_bytes = size_bytes
        self.knob = knob
        self._zeros = bytes(MAX_READ_BYTES)

    def serve(self) -> None:
        """Answer requests until it is unmounted."""
        with suppress(OSError):
            while True:
                request = os.read(self.device, _REQUEST_BYTES)
                _, opcode, unique, node, *_ = _IN.unpack_from(request)
                if opcode not in {_FORGET, _BATCH_FORGET, _INTERRUPT}:  # these want no answer
                    error, content = self.answer(opcode, node, request[_IN.size :])
                    os.write(self.device, _OUT.pack(_OUT.size + len(content), -error, unique) + content)

    def answer(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        """The errno and the content of the answer to one request."""
        if opcode == _INIT:
            return 0, _INIT_OUT.pack(7, 31, 0, 0, 0, 0, MAX_READ_BYTES, 1, 0, 0, 0)
        if opcode == _LOOKUP:
            if body.rstrip(b"\0") != FILE_NAME.encode():
                return _ENOENT, b""
            return 0, struct.pack("=QQQQII", _FILE_NODE, 0, 1, 1, 0, 0) + self.attributes(_FILE_NODE)
        if opcode == _READ:
            return 0, self.read(*_READ_IN.unpack_from(body)[1:])
        known = {
            _GETATTR: struct.pack("=QII", 1, 0, 0) + self.attributes(node),
            _OPEN: struct.pack("=QII", 0, _DIRECT_IO, 0),
            _RELEASE: b"",
            _FLUSH: b"",
        }
        return (0, known[opcode]) if opcode in known else (_ENOSYS, b"")

    def attributes(self, node: int) -> bytes:
        """The attributes that stat() returns."""
        is_root = node == _ROOT_NODE
        mode = stat.S_IFDIR | 0o555 if is_root else stat.S_IFREG | 0o444
        size = 0 if is_root else self.size_bytes
        return _ATTRIBUTES.pack(node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Zeros, after as long as a megabyte takes in this share."""
        count = max(0, min(size_bytes, self.size_bytes - offset, MAX_READ_BYTES))
        time.sleep(self.ms_per_mib() / 1000 * count / (1 << 20))
        return self._zeros[:count]

    def ms_per_mib(self) -> float:
        """The time per MiB that the knob sets; 0 without a knob file."""
        with suppress(FileNotFoundError):
            return float(self.knob.read_text()) if self.knob else 0.0
        return 0.0


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM; print `ready PID` on stderr when the file can be opened."""
    parser = argparse.ArgumentParser(prog="slow_mount", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size-bytes", type=int, default=256 << 20)
    parser.add_argument("--knob", type=Path, help="file with the milliseconds that a megabyte takes")
    options = parser.parse_args(arguments)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mount(device, options.folder)
    try:
        with lifecycle.until_stopped():
            lifecycle.announce("ready")
            SlowFile(device, options.size_bytes, options.knob).serve()
    finally:
        unmount(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
